"""Hosts with their accelerators, and where an experiment can be rerun."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db.models import F, Prefetch
from django.utils import timezone

from hud.hosts.registration import state_of, unavailable_suites
from hud.models import NIGHTLY, Accelerator, Experiment, Host, RunRequest, Schedule, ScheduleTrigger, Task
from hud.runs.matching import FITTING_RUNS
from hud.runs.schedules import CEILINGS, next_due
from hud.sql import fetch_tuples
from hud.tables.formatting import bytes_text, duration
from hud.tables.table import DataTable, under
from runner.schema.compilations import blind_text

SILENT = {"lost", "detached"}
SKEW_S = 5
USABLE = {"online", "late"}
_LINES = {
    "cpu": "CPU",
    "cpu_count": "processors",
    "memory_bytes": "memory",
    "os": "OS",
    "compiler": "C++ compiler",
    "python": "agent Python",
}
_LIMITS = {"max_sm_mhz": "{} MHz", "max_memory_mhz": "memory {} MHz", "power_limit_w": "{} W"}
_UNITS = {"gbps": "GB/s", "tflops": "TFLOP/s"}
COLUMNS = DataTable(  # of an accelerator
    f"""host=accelerator.host.name state
    {under("accelerator.host", "labels note last_beat refused_results refused_reason")}
    accelerator=accelerator.name device=accelerator.device_name arch=accelerator.arch
    accelerator_state=state why_dirty=accelerator.unavailable_reason running waiting suites lacking""",
    state=lambda line: state_of(line.accelerator.host, timezone.now()),
    running=lambda line: line.running.run_id if line.running else None,
    suites=lambda line: line.accelerator.catalog.get("suites", []),
    lacking=lambda line: unavailable_suites(line.accelerator.host.facts),
)
_SAID = """name enabled cron time_zone suite cases modes dtypes backends compilations repeats device
    environment labels everywhere"""
SCHEDULES = DataTable(
    f"id=schedule.pk {under('schedule', _SAID)} stream next_due last_due last_reason=last?.reason last_runs",
    stream=lambda line: line.schedule.stream.name if line.schedule.stream else NIGHTLY,
    last_due=lambda line: line.last.due if line.last else None,
    last_runs=lambda line: [request.pk for request in line.last.requests.all()] if line.last else [],
)


@dataclass(slots=True)
class AcceleratorLine:
    accelerator: Accelerator
    heard: bool = True  # its host is not lost
    running: Task | None = None
    waiting: int = 0  # queued tasks that it may take

    @property
    def state(self) -> str:
        if not self.accelerator.present:
            return "gone"
        if not self.heard:
            return "unknown"
        if self.accelerator.unavailable_reason:
            return "dirty"
        return "busy" if self.running else "idle"


@dataclass(slots=True)
class HostLine:
    host: Host
    state: str
    accelerators: list[AcceleratorLine] = field(default_factory=list)

    @property
    def skewed(self) -> bool:
        """Return whether the clock is far enough off to confuse a reader of its times."""
        return abs(self.host.clock_skew_s or 0.0) > SKEW_S

    @property
    def labels(self) -> list[str]:
        """Return the host's labels as ``gpu=h200``, without its accelerators' built-in ones."""
        return [f"{key}={text}" for key, text in sorted(self.host.labels.items())]

    @property
    def facts(self) -> dict[str, Any]:
        return read_facts(self.host.facts)

    @property
    def lacking(self) -> dict[str, str]:
        return unavailable_suites(self.host.facts)

    @property
    def activity(self) -> str:
        """Return what the host does, in one word: busy, idle, offline, or why it takes no work."""
        if self.state not in USABLE:
            return "offline" if self.state in SILENT else self.state
        return "busy" if any(line.running for line in self.accelerators) else "idle"

    @property
    def suites(self) -> list[str]:
        """Return the suites that some accelerator of it can run."""
        present = (line.accelerator for line in self.accelerators if line.accelerator.present)
        return sorted({name for one in present for name in one.catalog.get("suites", [])})


def read() -> list[HostLine]:
    """Return every host, in 4 statements."""
    now = timezone.now()
    tasks = Task.objects.filter(state=Task.State.RUNNING).select_related("run")
    running = {task.accelerator_id: task for task in tasks}
    queued = f"""SELECT a.id, count(*) FROM {FITTING_RUNS}
        JOIN hud_task t ON t.run_id = r.id AND t.state = 'queued' GROUP BY a.id"""  # noqa: S608 - constants of ours  # nosec B608
    waiting = dict(fetch_tuples(queued))  # a task that fits two accelerators counts for both
    attached_first = F("detached_at").asc(nulls_first=True)
    lines = []
    for host in Host.objects.prefetch_related("accelerators").order_by(attached_first, "name"):
        state = state_of(host, now)
        accelerators = [
            AcceleratorLine(one, state not in SILENT, running.get(one.pk), waiting.get(one.pk, 0))
            for one in sorted(host.accelerators.all(), key=lambda one: one.name)
        ]
        lines.append(HostLine(host, state, accelerators))
    return lines


def activities(lines: Iterable[HostLine]) -> list[tuple[str, int]]:
    """Count hosts by what they do, without detached ones."""
    counted = Counter(line.activity for line in lines if line.state != "detached")
    order = ("busy", "idle", "paused", "drained", "offline")
    return [(word, counted[word]) for word in order if counted[word]]


@dataclass(slots=True)
class ScheduleLine:
    schedule: Schedule
    next_due: datetime | None  # None while disabled
    last: ScheduleTrigger | None = None

    @property
    def shipped(self) -> bool:
        """Return whether `manage.py bootstrap` creates it again once deleted."""
        return self.schedule.name == CEILINGS

    @property
    def asks(self) -> str:
        """Return the suite and filters in words."""
        one = self.schedule
        parts = [one.cases, one.modes, one.dtypes, one.backends]
        compilations = f"{one.compilations} compilations" if one.compilations else ""
        repeats = f"{one.repeats} processes" if one.repeats > 1 else ""
        filters = (", ".join(part) for part in parts)
        return "; ".join(filter(None, [one.suite, *filters, compilations, repeats]))

    @property
    def place(self) -> str:
        """Return the accelerators in words."""
        one = self.schedule
        which = "every accelerator" if one.everywhere else "any accelerator"
        labels = [f"{key}={text}" for key, text in sorted(one.labels.items())]
        python = f"Python {one.environment}" if one.environment else ""
        return ", ".join(filter(None, [which, one.device, *labels, python]))


def read_schedules() -> list[ScheduleLine]:
    """Return every schedule by name, in 3 statements."""
    requests = Prefetch("requests", RunRequest.objects.select_related("run"))
    newest = ScheduleTrigger.objects.order_by("schedule_id", "-due").distinct("schedule_id")
    found = Schedule.objects.select_related("stream").prefetch_related(
        Prefetch("triggers", newest.prefetch_related(requests), to_attr="latest")
    )
    lines = []
    for schedule in found.order_by("name"):
        last = next(iter(schedule.latest), None)
        try:
            due = next_due(schedule, timezone.now()) if schedule.enabled else None
        except ValueError:  # written by other means than the form; tick switches it off
            due = None
        lines.append(ScheduleLine(schedule, due, last))
    return lines


@dataclass(frozen=True, slots=True)
class Place:
    """A place for a rerun: one host's device of an arch, or any host that has it."""

    host: Host | None
    device: str
    arch: str
    state: str  # of the host; of the best one for "any"
    same_arch: bool  # its points would continue the experiment's own series
    pythons: tuple[str, ...] = ()  # environments by name
    process_s: float | None = None  # that a process of the experiment took lately

    @property
    def key(self) -> str:
        return f"{self.host.pk if self.host else 'any'}:{self.device}:{self.arch}"

    @property
    def label(self) -> str:
        name = self.host.name if self.host else "any host"
        state = "" if self.state == "online" else f", {self.state}"
        about = "" if self.process_s is None else f", about {duration(self.process_s)} a process"
        return f"{name} · {self.arch}{state}{about}"


def places_for(experiment: Experiment, accelerators: Iterable[Accelerator]) -> list[Place]:
    """Return where these accelerators offer the suite, the experiment's own arch first."""
    now = timezone.now()
    single: dict[tuple[int, str, str], Place] = {}
    for one in accelerators:
        if experiment.suite in one.catalog.get("suites", []):
            same_arch = (one.device, one.arch) == (experiment.device, experiment.arch)
            pythons = tuple(one.catalog.get("pythons", []))
            place = Place(one.host, one.device, one.arch, state_of(one.host, now), same_arch, pythons)
            single[one.host_id, one.device, one.arch] = place
    by_arch: dict[tuple[str, str], list[Place]] = {}
    for place in single.values():
        by_arch.setdefault((place.device, place.arch), []).append(place)
    anywhere = []
    for group in by_arch.values():
        usable = any(place.state in USABLE for place in group)
        pythons = tuple(dict.fromkeys(name for place in group for name in place.pythons))
        state = "online" if usable else group[0].state
        anywhere.append(replace(group[0], host=None, state=state, pythons=pythons))
    return sorted(
        [*anywhere, *single.values()],
        key=lambda place: (not place.same_arch, place.arch, place.host is not None),
    )


def in_one_line() -> dict[str, Any]:
    """Count all hosts by `states`, and tasks `running` and `waiting`: 2 statements."""
    now = timezone.now()
    attached = "SELECT last_beat, paused_until, drained FROM hud_host WHERE detached_at IS NULL ORDER BY id"
    hosts = (
        Host(last_beat=beat, paused_until=until, drained=drained)
        for beat, until, drained in fetch_tuples(attached, {})
    )
    active = "SELECT state, count(*) FROM hud_task WHERE state IN ('running', 'queued') GROUP BY 1"
    tasks = dict(fetch_tuples(active, {}))
    states = Counter(state_of(host, now) for host in hosts)
    return {"states": dict(states), "running": tasks.get("running", 0), "waiting": tasks.get("queued", 0)}


def read_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return lines by their names, gpus, pythons, and measured ceilings by accelerator, from a host's last
    heartbeat; nothing from one that came before heartbeats were checked and is not of their form."""
    try:
        limits = {one["uuid"]: one for one in facts.get("gpu_limits", [])}
        return {
            "lines": {
                name: bytes_text(facts[key]) if key == "memory_bytes" else facts[key]
                for key, name in _LINES.items()
                if facts.get(key)
            },
            "gpus": [
                {**gpu, "memory": bytes_text(gpu.get("memory_bytes")), "limits": _limits(limits, gpu["uuid"])}
                for gpu in facts.get("gpus", [])
            ],
            "pythons": [
                {**python, "name": name, "notes": _notes(python.get("notes", {}))}
                for name, python in sorted(facts.get("pythons", {}).items())
            ],
            "ceilings": {
                accelerator: ", ".join(_ceiling(*item) for item in sorted(by_name.items()))
                for accelerator, by_name in sorted(facts.get("ceilings", {}).items())
            },
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _limits(by_gpu: Mapping[str, Mapping[str, str]], uuid: str) -> str:
    highest = by_gpu.get(uuid, {})
    return ", ".join(text.format(highest[key]) for key, text in _LIMITS.items() if highest.get(key))


def _notes(notes: Mapping[str, Any]) -> str:
    """Return what a first compilation by an interpreter lacked, '' for nothing."""
    return f"cannot compile: {notes['error']}" if "error" in notes else blind_text(notes.get("blind", {}))


def _ceiling(key: str, measured: Mapping[str, Any]) -> str:
    name, _, unit = key.rpartition("_")
    return f"{name.replace('_', ' ')} {measured['value']:.4g} {_UNITS.get(unit, unit)}"
