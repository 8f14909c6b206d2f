"""For load balancers: `/healthz` answers while the process lives, `/readyz` while all components work; and
`/metrics` in the text format of Prometheus."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.db.models import Count, F, Min, Model, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from redis.exceptions import RedisError, ResponseError

from hud.hosts import queues
from hud.hosts.registration import state_of, visible_hosts
from hud.judging.backlog import waiting
from hud.models import ACTIVE, Heartbeat, Import, Run, Task, Upload
from hud.sql import fetch_tuples
from hud.states.runs import RunState, TaskState

STILL = timedelta(seconds=120)  # many times the longest pause between two heartbeats of a process that works
_WORK: dict[str, Callable[[], QuerySet[Run] | QuerySet[Import]]] = {
    "tick": lambda: Run.objects.filter(state__in=ACTIVE),
    "judge": lambda: Run.objects.filter(unjudgedrun__isnull=False, finished__isnull=False),
    "imports": lambda: Import.objects.filter(finished__isnull=True),
}
_HOST_STATES = ("online", "late", "lost", "paused", "drained")


def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 503, with the reason for each component, while one of them does not work.

    A background process that was never started counts once work has waited for it, or others have run.
    """
    components = {"database": _database_problem(), "disk": _disk_problem(), "redis": _redis_problem()}
    if not components["database"]:
        components |= _process_problems()
    wrong = [problem for problem in components.values() if problem]
    shown = {name: problem or "ok" for name, problem in components.items()}
    answer = {"status": "; ".join(wrong) or "ok", "components": shown}
    return JsonResponse(answer, status=503 if wrong else 200)


class ProbeMiddleware(MiddlewareMixin):
    """Answer probes before all else: they come over plain HTTP and name an address, or nothing, as host."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        probe = {"/healthz": healthz, "/readyz": readyz}.get(request.path)
        if probe is None or request.method not in {"GET", "HEAD"}:
            return None
        answer = probe(request)
        answer["Content-Length"] = str(len(answer.content))  # for the connection to stay open
        return answer


def _database_problem() -> str:
    try:
        fetch_tuples("SELECT 1 FROM hud_metric LIMIT 1", {})
    except (DatabaseError, InterfaceError):
        return "the database does not answer"
    return ""


def _disk_problem() -> str:
    try:
        with tempfile.TemporaryFile(dir=settings.HUD_DATA) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"the data folder cannot be written: {error.strerror}"
    return ""


def _redis_problem() -> str:
    try:
        with queues.connect() as redis:
            redis.set("hud:probe", 1, ex=60)  # a full one still answers a ping
    except ResponseError as error:
        return f"Redis takes no writes: {error}"
    except (RedisError, OSError):
        return "Redis does not answer"
    return ""


def processes_standing_still() -> dict[str, str]:
    """Return the background processes that stand still, or that nobody started though others have run for
    a while, each with words: 1 statement."""
    statement = "SELECT name, statement_timestamp() - last, last - started FROM hud_heartbeat"
    silent = {name: (since, ran) for name, since, ran in fetch_tuples(statement, {})}
    others_run = any(since < STILL < ran for since, ran in silent.values())
    problems = {}
    for name in _WORK:
        since, _ran = silent.get(name, (timedelta(), None))
        if name not in silent and others_run:
            problems[name] = f"{name} was never started: run manage.py {name}"
        elif since > STILL:
            problems[name] = f"{name} has stood still for {since.total_seconds():.0f} s"
    return problems


def _process_problems() -> dict[str, str]:
    problems = dict.fromkeys(_WORK, "")
    for name in problems.keys() - set(Heartbeat.objects.values_list("name", flat=True)):
        oldest = _WORK[name]().aggregate(oldest=Min("finished" if name == "judge" else "created"))["oldest"]
        if oldest is not None and timezone.now() - oldest > STILL:
            problems[name] = f"{name} was never started, and work waits for it"
    return problems | processes_standing_still()


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
