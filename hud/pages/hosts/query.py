"""Hosts with their accelerators and what they do."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, QuerySet
from django.utils import timezone

from hud.hosts.registration import is_spoken, state_of, unavailable_suites
from hud.models import Accelerator, Host, Task
from hud.pages.query_string import MAX_PAGE, number, words
from hud.points.facts import fact_name
from hud.runs import queue
from hud.runs.places import USABLE
from hud.runs.queue import Queue
from hud.sql import fetch_tuples
from hud.tables.formatting import bytes_text, plain
from hud.tables.table import DataTable, under
from runner.schema.compilations import blind_text
from runner.schema.protocol import PROTOCOL, version

SILENT = {"lost", "detached"}
SKEW_S = 5
_LINES = {name: fact_name(name) for name in ("cpu", "cpu_count", "memory_bytes", "os", "compiler", "python")}
_LINES |= {"memory_bytes": "memory", "python": "agent Python", "runner": "runner"}
_LIMITS = {"max_sm_mhz": "{} MHz", "max_memory_mhz": "memory {} MHz", "power_limit_w": "{} W"}
_UNITS = {"gbps": "GB/s", "tflops": "TFLOP/s"}
HOSTS = 50  # of a page
# Of each attached host: what its state follows from, whether it is busy, and whether it could take a task
_ATTACHED = """
    SELECT h.last_beat, h.paused_until, h.drained, bool_or(t.id IS NOT NULL), count(a.id) = 0 OR bool_or(
        a.present AND t.id IS NULL AND a.unavailable_reason = '' AND a.quarantine_reason = '')
    FROM hud_host h LEFT JOIN hud_accelerator a ON a.host_id = h.id
    LEFT JOIN hud_task t ON t.accelerator_id = a.id AND t.state = 'running'
    WHERE h.detached_at IS NULL GROUP BY h.id"""
COLUMNS = DataTable(  # of an accelerator
    f"""host=accelerator.host.name state
    {under("accelerator.host", "labels note last_beat refused_results refused_reason")}
    accelerator=accelerator.name device=accelerator.device_name arch=accelerator.arch
    runner accelerator_state=state why_dirty=accelerator.hindrance running waiting suites lacking""",
    state=lambda line: state_of(line.accelerator.host, timezone.now()),
    running=lambda line: line.running.run_id if line.running else None,
    suites=lambda line: line.accelerator.catalog.get("suites", []),
    lacking=lambda line: unavailable_suites(line.accelerator.host.facts),
    runner=lambda line: line.accelerator.host.facts.get("runner", ""),
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
        if self.accelerator.hindrance:
            return "dirty"
        return "busy" if self.running else "idle"


@dataclass(slots=True)
class HostLine:
    host: Host
    state: str
    accelerators: list[AcceleratorLine] = field(default_factory=list)

    @property
    def in_quarantine(self) -> bool:
        return any(line.accelerator.quarantine_reason for line in self.accelerators)

    @property
    def skewed(self) -> bool:
        """Return whether the clock is far enough off to confuse a reader of its times."""
        return abs(self.host.clock_skew_s or 0.0) > SKEW_S

    @property
    def runner_note(self) -> str:
        """Return why its runner is to be updated, or ''."""
        facts = self.host.facts
        if not facts or self.state == "detached":
            return ""
        if not is_spoken(facts.get("protocol", PROTOCOL)):
            age = "old" if facts["protocol"] < PROTOCOL else "new"
            return f"Its runner is too {age} for this dashboard, and gets no tasks."
        other = facts.get("runner") or "of an earlier release"
        return "" if other == version() else f"Its runner ({other}) is not the dashboard's, {version()}."

    @property
    def details(self) -> dict[str, Any]:
        return _details(self.host.facts)

    @property
    def lacking(self) -> dict[str, str]:
        return unavailable_suites(self.host.facts)

    @property
    def activity(self) -> str:
        is_busy = any(line.running for line in self.accelerators)
        is_idle = not self.accelerators or any(line.state == "idle" for line in self.accelerators)
        return _activity(self.state, is_busy=is_busy, is_idle=is_idle)

    @property
    def suites(self) -> list[str]:
        """Return the suites that some accelerator of it can run."""
        present = (line.accelerator for line in self.accelerators if line.accelerator.present)
        return sorted({name for accelerator in present for name in accelerator.catalog.get("suites", [])})


@dataclass(frozen=True)
class HostFilters:
    q: str = words(label="Name")
    page: int = number(MAX_PAGE, default=1)


@dataclass
class HostPage:
    lines: list[HostLine]
    total: int  # hosts that match
    filters: HostFilters
    activities: list[tuple[str, int]]  # of all attached hosts
    queue: Queue

    @property
    def last(self) -> int:
        return max(1, -(-self.total // HOSTS))


def read(filters: HostFilters) -> HostPage:
    """Return a page of hosts, the attached ones first: 8 statements."""
    found, runs = _matching(filters.q), queue.read()
    lines = _lines(found, runs, (filters.page - 1) * HOSTS)
    return HostPage(lines, found.count(), filters, _activities(), runs)


def read_all() -> list[HostLine]:
    """Return every host: 6 statements."""
    return _lines(_matching(""), queue.read())


def _lines(found: QuerySet[Host], runs: Queue, start: int | None = None) -> list[HostLine]:
    """Return hosts with their accelerators, those of a page from `start` or all of them: 3 statements."""
    now = timezone.now()
    found = found.prefetch_related("accelerators").order_by(F("detached_at").asc(nulls_first=True), "name")
    hosts = list(found if start is None else found[start : start + HOSTS])
    shown = [row.pk for host in hosts for row in host.accelerators.all()]
    tasks = Task.objects.filter(state=Task.State.RUNNING, accelerator__in=shown)
    running = {task.accelerator_id: task for task in tasks}
    lines = []
    for host in hosts:
        state = state_of(host, now)
        accelerators = [
            AcceleratorLine(row, state not in SILENT, running.get(row.pk), runs.tasks_for.get(row.pk, 0))
            for row in sorted(host.accelerators.all(), key=lambda accelerator: accelerator.name)
        ]
        lines.append(HostLine(host, state, accelerators))
    return lines


def _matching(q: str) -> QuerySet[Host]:
    return Host.objects.filter(name__icontains=q) if q else Host.objects.all()


def _activities() -> list[tuple[str, int]]:
    """Count attached hosts by what they do: 1 statement, which reads nothing large of a host."""
    now, counted = timezone.now(), Counter[str]()
    for beat, until, drained, is_busy, is_idle in fetch_tuples(_ATTACHED):
        state = state_of(Host(last_beat=beat, paused_until=until, drained=drained), now)
        counted[_activity(state, is_busy=is_busy, is_idle=is_idle)] += 1
    order = ("busy", "idle", "unavailable", "paused", "drained", "offline")
    return [(word, counted[word]) for word in order if counted[word]]


def _activity(state: str, *, is_busy: bool, is_idle: bool) -> str:
    """Return what a host does in one word: busy, idle, unavailable, offline, paused, drained."""
    if state not in USABLE:
        return "offline" if state in SILENT else state
    return "busy" if is_busy else "idle" if is_idle else "unavailable"


def _lacking(python: Mapping[str, Any]) -> str:
    """Return why an interpreter cannot run, or what its first compilation lacked."""
    notes = python.get("notes", {})
    lacking = f"cannot compile: {notes['error']}" if "error" in notes else blind_text(notes.get("blind", {}))
    return python.get("error") or lacking


def _details(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a host's last heartbeat says of it: terms, measured ceilings, GPUs and interpreters. One
    from before heartbeats were checked, which is not of their form, says nothing."""
    try:
        terms = [
            (name, bytes_text(facts[key]) if key == "memory_bytes" else facts[key])
            for key, name in _LINES.items()
            if facts.get(key)
        ]
        ceilings = []
        for accelerator, measured in sorted(facts.get("ceilings", {}).items()):
            parts = [(*key.rpartition("_"), ceiling["value"]) for key, ceiling in sorted(measured.items())]
            texts = (f"{plain(name)} {value:.4g} {_UNITS.get(unit, unit)}" for name, _, unit, value in parts)
            ceilings.append((accelerator, ", ".join(texts)))
        limits = {limit["uuid"]: limit for limit in facts.get("gpu_limits", [])}
        gpus = [limits.get(gpu["uuid"], {}) | gpu for gpu in facts.get("gpus", [])]
        for gpu in gpus:
            gpu["limits"] = ", ".join(text.format(gpu[key]) for key, text in _LIMITS.items() if gpu.get(key))
        pythons = [
            {**python, "name": name, "lacking": _lacking(python)}
            for name, python in sorted(facts.get("pythons", {}).items())
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
    return {"terms": terms, "ceilings": ceilings, "gpus": gpus, "pythons": pythons}
