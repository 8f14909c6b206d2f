"""Hosts with their accelerators and what they do."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F
from django.utils import timezone

from hud.hosts.registration import is_spoken, state_of, unavailable_suites
from hud.models import Accelerator, Host, Task
from hud.points.facts import fact_name
from hud.runs.matching import FITTING_RUNS
from hud.runs.places import USABLE
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
        """Return what the host does, in one word: busy, idle, unavailable, offline, paused, drained."""
        if self.state not in USABLE:
            return "offline" if self.state in SILENT else self.state
        if any(line.running for line in self.accelerators):
            return "busy"
        is_idle = not self.accelerators or any(line.state == "idle" for line in self.accelerators)
        return "idle" if is_idle else "unavailable"

    @property
    def suites(self) -> list[str]:
        """Return the suites that some accelerator of it can run."""
        present = (line.accelerator for line in self.accelerators if line.accelerator.present)
        return sorted({name for accelerator in present for name in accelerator.catalog.get("suites", [])})


def read() -> list[HostLine]:
    """Return every host, in 4 statements."""
    now = timezone.now()
    running = {task.accelerator_id: task for task in Task.objects.filter(state=Task.State.RUNNING)}
    queued = f"""SELECT a.id, count(*) FROM {FITTING_RUNS}
        JOIN hud_task t ON t.run_id = r.id AND t.state = 'queued' GROUP BY a.id"""  # noqa: S608 - constants of ours  # nosec B608
    waiting = dict(fetch_tuples(queued))  # a task that fits two accelerators counts for both
    attached_first = F("detached_at").asc(nulls_first=True)
    lines = []
    for host in Host.objects.prefetch_related("accelerators").order_by(attached_first, "name"):
        state = state_of(host, now)
        accelerators = [
            AcceleratorLine(row, state not in SILENT, running.get(row.pk), waiting.get(row.pk, 0))
            for row in sorted(host.accelerators.all(), key=lambda accelerator: accelerator.name)
        ]
        lines.append(HostLine(host, state, accelerators))
    return lines


def activities(lines: Iterable[HostLine]) -> list[tuple[str, int]]:
    """Count hosts by what they do, without detached ones."""
    counted = Counter(line.activity for line in lines if line.state != "detached")
    order = ("busy", "idle", "unavailable", "paused", "drained", "offline")
    return [(word, counted[word]) for word in order if counted[word]]


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
