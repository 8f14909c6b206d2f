"""The attached machines, and what a person can do with them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from hud.hosts import registration
from hud.models import Host, Schedule
from hud.pages import data
from hud.pages.forms import DrainForm, PauseForm
from hud.pages.hosts import query, queue
from hud.pages.hosts import schedules as schedule_query
from hud.runs import run_states, schedules


@require_safe
def host_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        return data.answer(data_format, "hosts", [row for line in query.read() for row in line.to_rows()])
    return _page(request)


def _page(request: HttpRequest, attach_command: str = "") -> HttpResponse:
    content = {"schedules": schedule_query.read(), "attach_command": attach_command}
    return render(request, "hosts/hosts.html", _live() | content)


def _live() -> dict[str, Any]:
    """What changes by itself."""
    return {"lines": query.read(), "queue": queue.read()}


@require_safe
def live(request: HttpRequest) -> HttpResponse:
    response = render(request, "hosts/live.html", _live())
    response["Cache-Control"] = "no-store"
    return response


@require_POST
def act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Drains, pauses, resumes or detaches a host."""
    host = get_object_or_404(Host, pk=pk)
    if action not in _ACTIONS:
        raise Http404(f"actions of a host: {', '.join(_ACTIONS)}")
    if not request.user.is_authenticated:
        return redirect_to_login(reverse("hosts"))
    said = _ACTIONS[action](request, host, request.user.get_username())
    if said:
        messages.success(request, said)
    return redirect("hosts")


def _drain(request: HttpRequest, host: Host, who: str) -> str:
    form = DrainForm(request.POST)
    if not form.is_valid():
        return _complain(request, form)
    registration.drain(host=host, note=form.cleaned_data["note"], who=who)
    return f"Draining {host.name}: it finishes its current tasks."


def _pause(request: HttpRequest, host: Host, who: str) -> str:
    form = PauseForm(request.POST)
    if not form.is_valid():
        return _complain(request, form)
    registration.pause(host=host, until=form.until(), note=form.cleaned_data["note"], who=who)
    return f"Paused {host.name} for {form.cleaned_data['minutes']} min."


def _resume(_request: HttpRequest, host: Host, who: str) -> str:
    registration.resume(host=host, who=who)
    return f"Resumed {host.name}."


def _detach(request: HttpRequest, host: Host, who: str) -> str:
    if not request.POST.get("sure"):
        messages.error(request, "sure: confirm that the host is detached permanently.")
        return ""
    run_states.detach_host(host=host, who=who)
    return f"Detached {host.name} and revoked its key."


def _complain(request: HttpRequest, form: DrainForm | PauseForm) -> str:
    for name, errors in form.errors.items():
        messages.error(request, f"{name}: {' '.join(map(str, errors))}")
    return ""


_ACTIONS = {"drain": _drain, "pause": _pause, "resume": _resume, "detach": _detach}


@require_POST
@login_required
def token(request: HttpRequest) -> HttpResponse:
    """A registration token, shown this once."""
    secret = registration.create_token(who=request.user.get_username())
    address = request.build_absolute_uri("/").rstrip("/")
    command = f"python -m runner attach --hud {address} --token {secret}"
    return _page(request, command)


@require_POST
@login_required
def schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """Switches a schedule on or off."""
    found = get_object_or_404(Schedule, pk=pk)
    switch = schedules.enable if request.POST.get("enabled") == "1" else schedules.disable
    switch(schedule=found, who=request.user.get_username())
    messages.success(
        request, f"{'Enabled' if switch is schedules.enable else 'Disabled'} schedule {found.name}."
    )
    return redirect("hosts")


@require_POST
@login_required
def delete_schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """It comes no more; its runs stay."""
    found = get_object_or_404(Schedule, pk=pk)
    if not request.POST.get("sure"):
        messages.error(request, "sure: confirm that the schedule is deleted.")
        return redirect("hosts")
    schedules.delete(schedule=found, who=request.user.get_username())
    messages.success(request, f"Deleted schedule {found.name}; its runs are kept.")
    return redirect("hosts")
