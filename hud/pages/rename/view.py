"""Rename a suite, case, arch or host, after a look at what that changes."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from hud.accounts.access import after_login
from hud.ingest.renaming import KINDS, CannotRename, Renaming, rename
from hud.runs.references import Busy


class RenameForm(forms.Form):
    kind = forms.ChoiceField(choices=[(kind, kind) for kind in KINDS])
    old = forms.CharField(label="Name", max_length=200)
    new = forms.CharField(label="New name", max_length=200)
    suite = forms.CharField(required=False, max_length=60, help_text="of a case or an arch; empty: all")


@require_http_methods(["GET", "HEAD", "POST"])
@after_login(lambda _request: reverse("rename"))
def page(request: HttpRequest) -> HttpResponse:
    form = RenameForm(request.POST or None)
    preview: Renaming | None = None
    if form.is_valid():
        dry_run = "confirmed" not in request.POST
        try:
            done = rename(**form.cleaned_data, who=request.user.get_username(), dry_run=dry_run)
        except (CannotRename, Busy) as error:
            form.add_error("old", str(error))
        else:
            if not dry_run:
                done_words = "Renamed {old} to {new}.".format(**form.cleaned_data)
                messages.success(request, done_words)
                return redirect("rename")
            preview = done
    counts = {name: count for name, count in preview.to_json().items() if count} if preview else {}
    return render(request, "rename/rename.html", {"form": form, "preview": preview, "counts": counts})
