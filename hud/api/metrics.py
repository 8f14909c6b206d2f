"""`/metrics` in the text format of Prometheus."""

from collections import Counter
from collections.abc import Iterable

from django.db.models import Count, F, Model
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from hud.hosts.registration import state_of, visible_hosts
from hud.judging.backlog import waiting
from hud.models import Heartbeat, Run, Task, Upload
from hud.runs.states import RunState, TaskState

Samples = Iterable[tuple[str, float]]  # (labels as in the line, value)
_HOST_STATES = ("online", "late", "lost", "paused", "drained")


def metrics(request: HttpRequest) -> HttpResponse:
    queued = Run.objects.filter(state=RunState.QUEUED)
    oldest = queued.order_by("created").first()
    oldest_s = max((timezone.now() - oldest.created).total_seconds(), 0.0) if oldest else 0.0
    behind = waiting()
    behind_s = (timezone.now() - behind.since).total_seconds() if behind.since else 0.0
    text = "".join(
        [
            _gauge("hud_runs", "Runs by state, uploads among them.", _by_state(Run, RunState)),
            _gauge("hud_tasks", "Tasks of runs by state.", _by_state(Task, TaskState)),
            _gauge("hud_queue_length", "Runs that wait for an accelerator.", [("", queued.count())]),
            _gauge("hud_queue_oldest_seconds", "How long the oldest of them waits.", [("", oldest_s)]),
            _gauge("hud_hosts", "Attached hosts by state.", _hosts()),
            _gauge("hud_beacon_age_seconds", "Since a process went round last.", _heartbeats()),
            _gauge("hud_judge_waiting_series", "Series that wait for a verdict.", [("", behind.series)]),
            _gauge("hud_judge_waiting_seconds", "How long the judge has not caught up.", [("", behind_s)]),
            _gauge("hud_uploads", "Uploads taken in.", [("", Upload.objects.count())]),
        ]
    )
    return HttpResponse(text, content_type="text/plain; version=0.0.4; charset=utf-8")


def _gauge(name: str, meaning: str, samples: Samples) -> str:
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
    lines += [f"{name}{labels} {value:.10g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _by_state(model: type[Model], states: Iterable[str]) -> Samples:
    counted = dict(model._default_manager.values_list("state").annotate(n=Count("pk")).order_by())
    return [(f'{{state="{state}"}}', counted.get(state, 0)) for state in states]


def _hosts() -> Samples:
    now = timezone.now()
    counted = Counter(state_of(host, now) for host in visible_hosts())
    return [(f'{{state="{state}"}}', counted[state]) for state in _HOST_STATES]


def _heartbeats() -> Samples:
    ages = Heartbeat.objects.order_by("name").values_list("name", Now() - F("last"))
    return [(f'{{process="{name}"}}', age.total_seconds()) for name, age in ages]
