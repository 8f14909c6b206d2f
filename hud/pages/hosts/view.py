"""The hosts page, and what an operator can do with hosts and schedules."""

from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.accounts.access import scopes_of
from hud.hosts import registration
from hud.models import Host, Schedule
from hud.pages import data
from hud.pages.hosts import query
from hud.runs import queue, schedules, tasks
from hud.runs.queue import QueueLine
from hud.runs.schedules import CEILINGS, ScheduleLine
from hud.tables.formatting import address, ago, duration
from hud.tables.html import NOTHING, badge_html, code, csrf_field, dim, join, link, post_button, span, text
from hud.tables.table import Column, DataTable

_MAX_PAUSE_MINUTES = 30 * 24 * 60


class DrainForm(forms.Form):
    note = forms.CharField(required=False, max_length=500)


class PauseForm(DrainForm):
    minutes = forms.IntegerField(min_value=1, max_value=_MAX_PAUSE_MINUTES)


class SureForm(forms.Form):
    sure = forms.BooleanField()


def _start(line: QueueLine, _page: None) -> SafeString | str:
    if not line.queued:
        return ""
    if line.hindrance:
        return span(line.hindrance, "reason")
    if line.starts_in_s is None:
        return dim("no estimate yet")
    return f"in about {duration(line.starts_in_s)}" if line.starts_in_s else "next"


_QUEUE = DataTable[QueueLine, None](
    Column("", "Position", "position", css="num", label="position"),
    Column(
        "", "Run", is_head=True,
        draw=lambda line, _page: join(link(address(line.run, "run"), f"run {line.run}"), line.title),
    ),
    Column("", "State", "state", show=badge_html),
    Column("", "Starts", draw=_start),
    Column("", "Accelerator", "wants"),
    Column("", "Requested by", "requested_by", label="for"),
    Column("", "Tasks", lambda line: f"{line.done} of {line.tasks}", css="num", label="tasks"),
)  # fmt: skip


def _asked(line: ScheduleLine) -> str:
    """Return the suite and filters in words."""
    one = line.schedule
    filters = (", ".join(part) for part in (one.cases, one.modes, one.dtypes, one.backends))
    compilations = f"{one.compilations} compilations" if one.compilations else ""
    processes = f"{one.repeats} processes" if one.repeats > 1 else ""
    return "; ".join(filter(None, [one.suite, *filters, compilations, processes]))


def _accelerators(line: ScheduleLine) -> str:
    one = line.schedule
    which = "every accelerator" if one.everywhere else "any accelerator"
    labels = [f"{key}={value}" for key, value in sorted(one.labels.items())]
    python = f"Python {one.environment}" if one.environment else ""
    return ", ".join(filter(None, [which, one.device, *labels, python]))


def _last(line: ScheduleLine, _csrf: SafeString) -> SafeString:
    if not line.last:
        return dim("never")
    asked = line.last.requests.all()
    runs = join(
        *(join(link(address(one.pk, "run"), f"run {one.pk}"), one.run.state) for one in asked), by=", "
    )
    return join(join(ago(line.last.due), ":", by=""), runs, span(line.last.reason, "reason"))


def _buttons(line: ScheduleLine, csrf: SafeString) -> SafeString:
    """Return the button that switches a schedule, and one that deletes it, unless it would come again."""
    pk, name = line.schedule.pk, line.schedule.name
    value, verb = ("0", "Disable") if line.schedule.enabled else ("1", "Enable")
    about = {"name": "enabled", "value": value, "aria_label": f"{verb} {name}"}
    switch = post_button(reverse("schedule_act", args=[pk]), csrf, verb, **about)
    if name == CEILINGS:
        return switch
    action = reverse("schedule_delete", args=[pk])
    delete = f"""<details class="inline"><summary class="button">Delete<span class="visually-hidden">
        {text(name)}</span></summary><form method="post" action="{action}">{csrf}
        <label><input type="checkbox" name="sure" required> Delete the schedule and keep its runs</label>
        <button class="danger">Delete</button></form></details>"""
    return join(switch, SafeString(delete))


_SCHEDULES = DataTable[ScheduleLine, SafeString](
    Column("", "Name", "schedule.name", is_head=True),
    Column(
        "", "Cron",
        draw=lambda line, _csrf: join(code(line.schedule.cron), dim(line.schedule.time_zone)),
    ),
    Column("", "Suite", _asked),
    Column("", "Accelerator", _accelerators),
    Column("", "Next", "next_due", show=lambda due: ago(due) if due else dim("disabled"), label="next"),
    Column("", "Last", draw=_last, label="last"),
    Column("", "Actions", draw=_buttons, hides_title=True, only=bool),
)  # fmt: skip
_DONE = {
    "drain": "Draining {host}: it finishes its current tasks.",
    "pause": "Paused {host} for {minutes} min.",
    "resume": "Resumed {host}.",
    "detach": "Detached {host} and revoked its key.",
}
_FORMS = {"drain": DrainForm, "pause": PauseForm, "resume": forms.Form, "detach": SureForm}


def host_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        accelerators = [line for host in query.read() for line in host.accelerators]
        return data.answer_table(data_format, "hosts", query.COLUMNS, accelerators)
    return _page(request)


def _page(request: HttpRequest, attach_command: str = "") -> HttpResponse:
    csrf = csrf_field(request) if "hosts" in scopes_of(request) else NOTHING
    planned = _SCHEDULES.html(
        schedules.read(), csrf, empty="No scheduled runs.", labelled_by="schedules", css="blocks"
    )
    content = {"schedules_html": planned, "attach_command": attach_command}
    return render(request, "hosts/hosts.html", _live() | content)


def _live() -> dict[str, Any]:
    lines, waiting = query.read(), queue.read()
    queue_html = _QUEUE.html(
        waiting.lines,
        None,
        caption="Interactive requests first, then oldest first; running tasks are never interrupted",
        empty="The queue is empty. A rerun from an experiment's page or a schedule fills it.",
        labelled_by="queue",
        css="blocks",
    )
    about = {"lines": lines, "activities": query.activities(lines)}
    return {**about, "queue": waiting, "queue_html": queue_html}


def live(request: HttpRequest) -> HttpResponse:
    response = render(request, "hosts/live.html", _live())
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
    address = request.build_absolute_uri("/").rstrip("/")
    command = f"python -m runner attach --hud {address} --token {secret}"
    return _page(request, command)


def schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """Enable or disable a schedule."""
    found = get_object_or_404(Schedule, pk=pk)
    is_on = request.POST.get("enabled") == "1"
    schedules.switch(schedule=found, enabled=is_on, who=request.user.get_username())
    messages.success(request, f"{'Enabled' if is_on else 'Disabled'} schedule {found.name}.")
    return redirect("hosts")


def delete_schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a schedule and keep its runs."""
    found = get_object_or_404(Schedule, pk=pk)
    if not request.POST.get("sure"):
        messages.error(request, "sure: confirm that the schedule is deleted.")
        return redirect("hosts")
    schedules.delete(schedule=found, who=request.user.get_username())
    messages.success(request, f"Deleted schedule {found.name}; its runs are kept.")
    return redirect("hosts")
