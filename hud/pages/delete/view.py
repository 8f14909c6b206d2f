"""Delete a run or an upload, after a page that shows what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from hud.ingest.deletion import CannotDelete, Deletion, delete_run, delete_upload, may_delete, uploads_of
from hud.models import Run, Upload
from hud.runs.references import Busy


def run(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Run, pk=pk)
    return _answer(request, partial(delete_run, run=found), uploads_of(found), f"run {pk}", found)


def upload(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Upload.objects.select_related("key"), pk=pk)
    run = found.runs.order_by("pk").first()
    return _answer(request, partial(delete_upload, upload=found), [found], f"upload {pk}", run)


def _answer(
    request: HttpRequest,
    delete: Callable[..., Deletion],
    uploads: Sequence[Upload],
    subject: str,
    run: Run | None,
) -> HttpResponse:
    """Show what would go, or delete it. Raise PermissionDenied."""
    scopes: frozenset[str] = request.scopes  # type: ignore[attr-defined]  # of the person's role
    if not may_delete(uploads, scopes=scopes, owner_id=request.user.pk):
        raise PermissionDenied
    back = reverse("run", args=[run.pk]) if run else reverse("runs")
    try:
        done = delete(who=request.user.get_username(), dry_run=request.method != "POST")
    except (CannotDelete, Busy) as error:
        messages.error(request, f"{subject.capitalize()} is not deleted: {error}.")
        return redirect(back)
    if request.method == "POST":
        messages.success(request, f"Deleted {subject} with {done.measurements} measurements.")
        return redirect("runs")
    counts = {name: count for name, count in done.to_json().items() if count and name != "file_bytes"}
    context = {"subject": subject, "counts": counts, "file_bytes": done.file_bytes, "back": back}
    return render(request, "delete/delete.html", context)
