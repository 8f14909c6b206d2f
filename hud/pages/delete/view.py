"""Delete a run or an upload, after a page that shows what goes with it; and how far the background is."""

from collections.abc import Sequence

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from hud.accounts.access import scopes_of
from hud.corrections import background
from hud.corrections.background import delete
from hud.corrections.deletion import may_delete, uploads_of
from hud.models import Correction, Run, Upload
from hud.problems import Problem


def run(request: HttpRequest, pk: int) -> HttpResponse:
    object_or_404 = get_object_or_404(Run, pk=pk)
    return _answer(request, object_or_404, uploads_of(object_or_404), object_or_404)


def upload(request: HttpRequest, pk: int) -> HttpResponse:
    object_or_404 = get_object_or_404(Upload.objects.select_related("key"), pk=pk)
    return _answer(request, object_or_404, [object_or_404], object_or_404.runs.order_by("pk").first())


def _answer(
    request: HttpRequest, found: Run | Upload, uploads: Sequence[Upload], run: Run | None
) -> HttpResponse:
    """Show what would go, or delete it."""
    if not may_delete(uploads, scopes=scopes_of(request), owner_id=request.user.pk):
        raise PermissionDenied
    subject, back = str(found), reverse("run", args=[run.pk]) if run else reverse("runs")
    try:
        done = delete(found, who=request.user.get_username(), dry_run=request.method != "POST")
    except Problem as error:
        messages.error(request, f"{subject.capitalize()} is not deleted: {error}.")
        return redirect(back)
    if isinstance(done, Correction):
        return redirect("correction", pk=done.pk)
    if request.method == "POST":
        messages.success(request, f"Deleted {subject} with {done.measurements} measurements.")
        return redirect("runs")
    counts = {name: count for name, count in done.to_json().items() if count and name != "file_bytes"}
    context = {"subject": subject, "counts": counts, "file_bytes": done.file_bytes, "back": back}
    return render(request, "delete/delete.html", context)


def correction(request: HttpRequest, pk: int) -> HttpResponse:
    """Show how far a deletion, renaming or merge in the background is."""
    row = get_object_or_404(Correction, pk=pk)
    counts = {name: count for name, count in row.counts.items() if count and name != "file_bytes"}
    context = {"row": row, "counts": counts, "may_cancel": row.waits and _may_cancel(request, row)}
    response = render(request, "delete/correction.html", context)
    if row.finished:
        response["X-Poll"] = "stop"
    return response


def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Correction, pk=pk)
    if not _may_cancel(request, row):
        raise PermissionDenied
    try:
        background.cancel(row, who=request.user.get_username())
    except Problem as error:
        messages.error(request, f"Not cancelled: {error}.")
    return redirect("correction", pk=pk)


def _may_cancel(request: HttpRequest, row: Correction) -> bool:
    return background.may_cancel(row, scopes=scopes_of(request), owner_id=request.user.pk)
