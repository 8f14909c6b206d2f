"""The hosts page, and what an operator can do with hosts and schedules."""

from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotFound
from django.shortcuts import get_object_or_404, redirect, render
from django.templatetags.static import static
from django.urls import reverse

from hud.hosts import registration
from hud.models import Host, Schedule
from hud.pages import data, query_string
from hud.pages.hosts import query
from hud.runs import schedules, tasks
from hud.server import wheel

_MAX_PAUSE_MINUTES = 30 * 24 * 60


class DrainForm(forms.Form):
    note = forms.CharField(required=False, max_length=500)


class PauseForm(DrainForm):
    minutes = forms.IntegerField(min_value=1, max_value=_MAX_PAUSE_MINUTES)


class SureForm(forms.Form):
    sure = forms.BooleanField()


_DONE = {
    "drain": "Draining {host}: it finishes its current tasks.",
    "pause": "Paused {host} for {minutes} min.",
    "resume": "Resumed {host}.",
    "detach": "Detached {host} and revoked its key.",
}
_FORMS = {"drain": DrainForm, "pause": PauseForm, "resume": forms.Form, "detach": SureForm}


def host_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        accelerators = [line for host in query.read_all() for line in host.accelerators]
        return data.answer_table(data_format, "hosts", query.COLUMNS, accelerators)
    return _page(request)


def _page(request: HttpRequest, attach_command: str = "") -> HttpResponse:
    planned = {"schedules": schedules.read(), "ceilings": schedules.CEILINGS}
    context = {**_live(request), **planned, "attach_command": attach_command}
    return render(request, "hosts/hosts.html", context)


def _live(request: HttpRequest) -> dict[str, Any]:
    filters, _complaints = query_string.read(query.HostFilters, request.GET)
    page = query.read(filters)
    is_cut = page.last > 1 or filters.q
    address = request.build_absolute_uri(reverse("runner", args=[wheel.filename()]))
    return {
        "page": page,
        "form": query_string.filter_form(filters, clear=filters.q and reverse("hosts")) if is_cut else "",
        "queue": page.queue,
        "install_command": f"python -m pip install {address}",
    }


def runner(request: HttpRequest, name: str = "") -> HttpResponse:
    """List the wheel of the runner, as `pip install --find-links` reads it, or send it."""
    current = wheel.filename()
    if name == current:
        return HttpResponse(wheel.content(), content_type="application/zip")
    if name:
        return HttpResponseNotFound("this dashboard has another runner now: see /runner/", "text/plain")
    icon = f'<link rel="icon" href="{static("favicon.svg")}">'
    link = f'<main><h1>Runner</h1><a href="{current}">{current}</a></main>'
    return HttpResponse(f'<!doctype html><html lang="en"><title>Runner</title>{icon}{link}</html>')


def live(request: HttpRequest) -> HttpResponse:
    response = render(request, "hosts/live.html", _live(request))
    response["Cache-Control"] = "no-store"
    return response


def act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Drain, pause, resume or detach a host."""
    host = get_object_or_404(Host, pk=pk)
    if action not in _FORMS:
        raise Http404(f"actions of a host: {', '.join(_FORMS)}")
    form = _FORMS[action](request.POST)
    if not form.is_valid():
        for name, errors in form.errors.items():
            messages.error(request, f"{name}: {' '.join(map(str, errors))}")
        return redirect("hosts")
    settings = {name: value for name, value in form.cleaned_data.items() if name != "sure"}
    do = tasks.detach_host if action == "detach" else partial(registration.control, action)
    do(host=host, who=request.user.get_username(), **settings)
    messages.success(request, _DONE[action].format(host=host.name, **settings))
    return redirect("hosts")


def token(request: HttpRequest) -> HttpResponse:
    """Create a registration token and show it once."""
    secret = registration.create_token(who=request.user.get_username())
    command = f"python -m runner attach --hud {request.build_absolute_uri('/').rstrip('/')} --token {secret}"
    return _page(request, command)


def schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """Enable or disable a schedule."""
    object_or_404 = get_object_or_404(Schedule, pk=pk)
    is_on = request.POST.get("enabled") == "1"
    schedules.switch(schedule=object_or_404, enabled=is_on, who=request.user.get_username())
    messages.success(request, f"{'Enabled' if is_on else 'Disabled'} schedule {object_or_404.name}.")
    return redirect("hosts")


def delete_schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a schedule and keep its runs."""
    object_or_404 = get_object_or_404(Schedule, pk=pk)
    if not request.POST.get("sure"):
        messages.error(request, "sure: confirm that the schedule is deleted.")
        return redirect("hosts")
    schedules.delete(schedule=object_or_404, who=request.user.get_username())
    messages.success(request, f"Deleted schedule {object_or_404.name}; its runs are kept.")
    return redirect("hosts")
