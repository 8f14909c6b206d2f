"""`/metrics` in the text format of Prometheus."""

from collections import Counter
from collections.abc import Iterable, Mapping

from django.db.models import Count, F, Model
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from hud.hosts.registration import state_of, visible_hosts
from hud.judging.backlog import waiting
from hud.models import Heartbeat, Run, Task, Upload
from hud.runs.states import RunState, TaskState

_HOST_STATES = ("online", "late", "lost", "paused", "drained")


def metrics(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    queued = Run.objects.filter(state=RunState.QUEUED)
    oldest = queued.order_by("created").first()
    oldest_s = max((now - oldest.created).total_seconds(), 0.0) if oldest else 0.0
    behind = waiting()
    behind_s = (now - behind.since).total_seconds() if behind.since else 0.0
    hosts = Counter(state_of(host, now) for host in visible_hosts())
    ages = Heartbeat.objects.order_by("name").values_list("name", Now() - F("last"))
    ages_s = {name: age.total_seconds() for name, age in ages}
    gauges = [
        _gauge("hud_runs", "Runs by state, uploads among them.", _by_state(Run, RunState)),
        _gauge("hud_tasks", "Tasks of runs by state.", _by_state(Task, TaskState)),
        _gauge("hud_queue_length", "Runs that wait for an accelerator.", queued.count()),
        _gauge("hud_queue_oldest_seconds", "How long the oldest of them waits.", oldest_s),
        _gauge("hud_hosts", "Attached hosts by state.", {state: hosts[state] for state in _HOST_STATES}),
        _gauge("hud_beacon_age_seconds", "Since a process went round last.", ages_s, label="process"),
        _gauge("hud_judge_waiting_series", "Series that wait for a verdict.", behind.series),
        _gauge("hud_judge_waiting_seconds", "How long the judge has not caught up.", behind_s),
        _gauge("hud_uploads", "Uploads taken in.", Upload.objects.count()),
    ]
    return HttpResponse("".join(gauges), content_type="text/plain; version=0.0.4; charset=utf-8")


def _gauge(name: str, meaning: str, value: float | Mapping[str, float], *, label: str = "state") -> str:
    """Return one value, or one for each value of a label."""
    values = value if isinstance(value, Mapping) else {"": value}
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
    for key, number in values.items():
        labels = f'{{{label}="{key}"}}' if key else ""
        lines.append(f"{name}{labels} {number:.10g}")
    return "\n".join(lines) + "\n"


def _by_state(model: type[Model], states: Iterable[str]) -> dict[str, int]:
    counts = dict(model._default_manager.values_list("state").annotate(n=Count("pk")).order_by())
    return {state: counts.get(state, 0) for state in states}
