"""For load balancers: `/healthz` answers while the process lives, `/readyz` while this node works. For the
monitoring: `/statusz` of what all nodes share, and `/metrics` of Prometheus."""

import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.models import Count, F, Min, Model, QuerySet, Sum
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from redis.exceptions import RedisError, ResponseError

from hud import replica
from hud.hosts import queues
from hud.hosts.heartbeats import files_problem
from hud.hosts.registration import state_of, visible_hosts
from hud.judging.backlog import waiting
from hud.models import ACTIVE, Accelerator, Delivery, Heartbeat, Host, Import, Run, Task, Upload
from hud.server import access_log
from hud.server.embedded import redis_warning
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
    """Answer whether this node serves pages: 503 with the reason for each component that does not work."""
    components = node_problems()
    shown = {name: problem or "ok" for name, problem in components.items()}
    return _probed(components, components=shown)


def node_problems() -> dict[str, str]:
    """Return what this node needs, each with its problem, or ''."""
    problem = _database_problem()
    is_served = not problem or replica.answers()  # which alone has pages too
    components = {"database": "" if is_served else problem, "disk": _disk_problem()}
    if not problem:
        components["data_folder"] = files_problem()
    return components


def statusz(request: HttpRequest) -> JsonResponse:
    """Answer whether what all nodes share works: each part with its problem, its age, and what waits for it;
    503 while one does not."""
    parts = shared_parts()
    return _probed({name: part["problem"] for name, part in parts.items()}, parts=parts)


def shared_parts() -> dict[str, dict[str, Any]]:
    """Return what all nodes share by name. A process that was never started has a problem once work has
    waited for it, or others have run."""
    problems, facts = {"database": _database_problem()}, defaultdict[str, dict[str, Any]](dict)
    problems["redis"], facts["redis"]["warning"] = _redis_problem()
    if replica.REPLICA in settings.DATABASES:
        problems["replica"], facts["replica"]["warning"] = replica.condition()
    if not problems["database"]:
        problems |= _process_problems()
        for name, age_s in _ages_s().items():
            facts[name] |= {"age_s": age_s}
        for name, (count, oldest_s) in _waiting().items():
            facts[name] |= {"waiting": count, "oldest_s": oldest_s}
    return {name: {"problem": problems.get(name, ""), **facts[name]} for name in sorted({*problems, *facts})}


def _probed(problems: Mapping[str, str], **more: Any) -> JsonResponse:
    words = "; ".join(filter(None, problems.values()))
    return JsonResponse({"status": words or "ok", **more}, status=503 if words else 200)


class ProbeMiddleware(MiddlewareMixin):
    """Answer probes before all else: they come over plain HTTP and name an address, or nothing, as host."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        probe = {"/healthz": healthz, "/readyz": readyz, "/statusz": statusz}.get(request.path)
        if probe is None or request.method not in {"GET", "HEAD"}:
            return None
        answer = probe(request)
        answer["Content-Length"] = str(len(answer.content))  # for the connection to stay open
        return answer


def _database_problem() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM hud_metric LIMIT 1")
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


def _redis_problem() -> tuple[str, str]:
    """Return why Redis does not work, and what is wrong with it all the same."""
    warning = ""
    try:
        with queues.connect() as redis:
            with suppress(ResponseError):  # a user of an operator who may not ask
                warning = redis_warning(redis.info("server")["redis_version"])
            redis.set("hud:probe", 1, ex=60)  # a full one still answers a ping
    except ResponseError as error:
        return f"Redis takes no writes: {error}", warning
    except (RedisError, OSError):
        return "Redis does not answer", warning
    return "", warning


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


def _ages_s() -> dict[str, float]:
    """Return how long ago each process, on whatever node, sent its last heartbeat."""
    ages = Heartbeat.objects.filter(name__in=("web", *_WORK)).order_by("name")
    return {name: age.total_seconds() for name, age in ages.values_list("name", Now() - F("last"))}


def _waiting() -> dict[str, tuple[int, float]]:
    """Return how much waits for an accelerator (`queue`) and for each process, and the age of the oldest."""
    rows: dict[str, QuerySet[Any]] = {
        "queue": Run.objects.filter(state=RunState.QUEUED),
        "imports": Import.objects.filter(finished=None),
        "outbox": Delivery.objects.filter(delivered=None, given_up=None),
    }
    lines = {}
    for name, waiting_rows in rows.items():
        line = waiting_rows.aggregate(count=Count("pk"), age=Now() - Min("created"))
        lines[name] = (line["count"], max(line["age"].total_seconds(), 0.0) if line["count"] else 0.0)
    behind = waiting()
    behind_s = (timezone.now() - behind.since).total_seconds() if behind.since else 0.0
    return {**lines, "judge": (behind.series, behind_s)}


def metrics(request: HttpRequest) -> HttpResponse:
    """Answer the figures of this node's requests, and those of the installation, in Prometheus' format."""
    registry = _of_requests()
    registry.register(_Figures())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def failed_requests() -> dict[str, float]:
    """Return how many requests this node has answered with a status of 500 or more, by view."""
    failed: Counter[str] = Counter()
    for family in _of_requests().collect():
        for sample in family.samples:
            if sample.name == "hud_http_requests_total" and sample.labels["status"] >= "500":
                failed[sample.labels["view"]] += int(sample.value)
    return dict(failed)


def _of_requests() -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:  # under gunicorn
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(access_log.REQUESTS)
        registry.register(access_log.SECONDS)
    return registry


class _Figures(Collector):
    """The gauges of what the database and the disk say."""

    def collect(self) -> Iterator[Metric]:
        lines = _waiting()
        yield _gauge("hud_queue_length", "Runs that wait for an accelerator.", lines["queue"][0])
        yield _gauge("hud_queue_oldest_seconds", "How long the oldest of them waits.", lines["queue"][1])
        yield _gauge("hud_beacon_age_seconds", "Since a process went round last.", _ages_s(), "process")
        yield _gauge("hud_judge_waiting_series", "Series that wait for a verdict.", lines["judge"][0])
        yield _gauge("hud_judge_waiting_seconds", "How long the judge has not caught up.", lines["judge"][1])
        yield _gauge("hud_imports_waiting", "Import jobs that have not ended.", lines["imports"][0])
        yield _gauge("hud_imports_oldest_seconds", "How long the oldest of them waits.", lines["imports"][1])
        yield _gauge("hud_outbox_waiting", "Messages that wait to be delivered.", lines["outbox"][0])
        yield _gauge("hud_outbox_oldest_seconds", "How long the oldest of them waits.", lines["outbox"][1])
        now = timezone.now()
        reached = {host.name: state_of(host, now) != "lost" for host in visible_hosts()}
        yield _gauge("hud_host_up", "Whether a host sends heartbeats.", reached, "host")
        cards = Accelerator.objects.filter(quarantined_at__isnull=False, host__name__in=reached)
        quarantined = dict.fromkeys(reached, 0) | Counter(cards.values_list("host__name", flat=True))
        yield _gauge("hud_cards_quarantined", "Cards that take canaries alone.", quarantined, "host")
        yield from site_figures()


def site_figures() -> Iterator[Metric]:
    """Yield the gauges that are of no part."""
    now = timezone.now()
    counts = Counter(state_of(host, now) for host in visible_hosts())
    disk = shutil.disk_usage(settings.HUD_DATA)
    refused = Host.objects.aggregate(count=Sum("refused_results", default=0))["count"]
    yield _gauge("hud_disk_free_bytes", "Free in the data folder.", disk.free)
    yield _gauge("hud_disk_size_bytes", "Size of the disk of the data folder.", disk.total)
    by_state = {state: counts[state] for state in _HOST_STATES}
    yield _gauge("hud_hosts", "Attached hosts by state.", by_state, "state")
    yield _gauge("hud_runs", "Runs by state, uploads among them.", _by_state(Run, RunState), "state")
    yield _gauge("hud_tasks", "Tasks of runs by state.", _by_state(Task, TaskState), "state")
    yield _gauge("hud_uploads", "Uploads taken in.", Upload.objects.count())
    failed = Import.objects.filter(state=Import.State.FAILED).count()
    yield _gauge("hud_imports_failed", "Import jobs that failed, of those that are kept.", failed)
    given_up = Delivery.objects.exclude(given_up=None).count()
    yield _gauge("hud_outbox_given_up", "Messages that could not be delivered.", given_up)
    yield _gauge("hud_results_refused", "Results that hosts delivered for other tasks.", refused)


def _gauge(name: str, meaning: str, value: float | Mapping[str, float], label: str = "") -> GaugeMetricFamily:
    """Return one value, or one for each value of a label."""
    gauge = GaugeMetricFamily(name, meaning, labels=[label] if label else [])
    for key, number in (value if isinstance(value, Mapping) else {"": value}).items():
        gauge.add_metric([key] if label else [], number)
    return gauge


def _by_state(model: type[Model], states: Iterable[str]) -> dict[str, int]:
    counts = dict(model._default_manager.values_list("state").annotate(n=Count("pk")).order_by())
    return {state: counts.get(state, 0) for state in states}
