"""Rename a suite, case, arch or host, after a look at what that changes; arches to be named; aliases."""

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from hud.accounts import audit
from hud.accounts.access import scopes_of
from hud.corrections.background import rename
from hud.corrections.renaming import KINDS, Renaming, may_rename
from hud.models import Alias, Correction, Experiment
from hud.problems import Problem
from runner.schema.devices import is_named


class RenameForm(forms.Form):
    kind = forms.ChoiceField(choices=[(kind, kind) for kind in KINDS])
    old = forms.CharField(label="Name", max_length=200)
    new = forms.CharField(label="New name", max_length=200)
    suite = forms.CharField(required=False, max_length=60, help_text="of a case or an arch; empty: all")


def page(request: HttpRequest) -> HttpResponse:
    form = RenameForm(request.POST or None)
    preview: Renaming | None = None
    if form.is_valid():
        if not may_rename(form.cleaned_data["kind"], form.cleaned_data["old"], scopes_of(request)):
            raise PermissionDenied
        dry_run = "confirmed" not in request.POST
        try:
            done = rename(**form.cleaned_data, who=request.user.get_username(), dry_run=dry_run)
        except Problem as error:
            form.add_error("old", str(error))
        else:
            if isinstance(done, Correction):
                return redirect("correction", pk=done.pk)
            if not dry_run:
                messages.success(request, "Renamed {old} to {new}.".format(**form.cleaned_data))
                return redirect("rename")
            preview = done
    counts = {name: count for name, count in preview.to_json().items() if count} if preview else {}
    arches = Experiment.objects.exclude(arch="").values_list("arch").annotate(Count("pk")).order_by("arch")
    context = {
        "form": form,
        "preview": preview,
        "counts": counts,
        "unnamed": [(arch, count) for arch, count in arches if not is_named(arch)],
        "aliases": Alias.objects.filter(kind__in=KINDS).order_by("kind", "suite", "old"),
    }
    return render(request, "rename/rename.html", context)


def remove(request: HttpRequest, pk: int) -> HttpResponse:
    alias = get_object_or_404(Alias, pk=pk)
    audit.note(who=request.user.get_username(), action="rename.remove_alias", subject=str(alias))
    alias.delete()
    messages.success(request, f"{alias.old} keeps its name from now on.")
    return redirect("rename")
