"""Attached machines: their accelerators, what they do now, and where an experiment can be run again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import F
from django.utils import timezone

from hud.hosts.registration import state_of
from hud.models import Accelerator, Experiment, Host, Task
from hud.pages.hosts.facts import Facts
from hud.pages.hosts.facts import read as read_facts
from hud.pages.sql import fetch_tuples

SILENT = {"lost", "detached"}
SKEW_S = 5
USABLE = {"online", "late"}


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
        if self.accelerator.dirty:
            return "dirty"
        return "busy" if self.running else "idle"


@dataclass(slots=True)
class HostLine:
    host: Host
    state: str
    accelerators: list[AcceleratorLine] = field(default_factory=list)

    @property
    def resumable(self) -> bool:
        """It was told to take nothing more."""
        return self.host.drained or self.state == "paused"

    @property
    def skewed(self) -> bool:
        """Its clock is far enough off to confuse a reader of its times."""
        return abs(self.host.clock_skew_s or 0.0) > SKEW_S

    @property
    def labels(self) -> list[str]:
        """Those it was given, as ``gpu=h200``; its accelerators have built-in ones besides."""
        return [f"{key}={text}" for key, text in sorted(self.host.labels.items())]

    @property
    def facts(self) -> Facts:
        return read_facts(self.host.facts)

    def to_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "host": self.host.name,
                "state": self.state,
                "labels": self.host.labels,
                "note": self.host.note,
                "last_beat": self.host.last_beat,
                "accelerator": line.accelerator.name,
                "device": line.accelerator.device_name,
                "arch": line.accelerator.arch,
                "accelerator_state": line.state,
                "why_dirty": line.accelerator.dirty,
                "running": line.running.run_id if line.running else None,
                "waiting": line.waiting,
            }
            for line in self.accelerators
        ]


def read() -> list[HostLine]:
    """Every host, in 4 statements."""
    now = timezone.now()
    running = {task.accelerator_id: task for task in _running()}
    waiting = _waiting()
    lines = []
    for host in _hosts():
        state = state_of(host, now)
        heard = state not in SILENT
        accelerators = sorted(host.accelerators.all(), key=lambda one: one.name)
        lines.append(
            HostLine(
                host,
                state,
                [
                    AcceleratorLine(one, heard, running.get(one.pk), waiting.get(one.pk, 0))
                    for one in accelerators
                ],
            )
        )
    return lines


def _hosts() -> list[Host]:
    attached_first = F("detached_at").asc(nulls_first=True)
    return list(Host.objects.prefetch_related("accelerators").order_by(attached_first, "name"))


def _running() -> list[Task]:
    return list(Task.objects.filter(state=Task.State.RUNNING).select_related("run"))


def _waiting() -> dict[int, int]:
    """Queued tasks for each accelerator that may take them; one that fits two counts for both."""
    lines = fetch_tuples(
        """
        SELECT a.id, count(*)
        FROM hud_task t
        JOIN hud_run r ON r.id = t.run_id AND r.state IN ('queued', 'running') AND r.cancel_asked IS NULL
        JOIN hud_accelerator a ON a.present AND a.device = r.device
            AND (r.host_id IS NULL OR a.host_id = r.host_id) AND (r.arch = '' OR a.arch = r.arch)
        WHERE t.state = 'queued'
        GROUP BY a.id
        """,
        {},
    )
    return dict(lines)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rerun can go: one host's device of an arch, or any host that has it."""

    host: Host | None
    device: str
    arch: str
    state: str  # of the host; of the best one for "any"
    same_arch: bool  # its points would continue the experiment's own series
    pythons: tuple[str, ...] = ()  # environments by name

    @property
    def key(self) -> str:
        return f"{self.host.pk if self.host else 'any'}:{self.device}:{self.arch}"

    @property
    def label(self) -> str:
        name = self.host.name if self.host else "any host"
        told = "" if self.state == "online" else f", {self.state}"
        return f"{name} · {self.arch}{told}"


def places_for(experiment: Experiment) -> list[Place]:
    """Where attached hosts offer the suite, the experiment's own arch first: 1 statement."""
    now = timezone.now()
    found = Accelerator.objects.filter(present=True, host__detached_at__isnull=True).select_related("host")
    able = [one for one in found if experiment.suite in one.catalog.get("suites", [])]
    single = {
        (one.host_id, one.device, one.arch): Place(
            one.host,
            one.device,
            one.arch,
            state_of(one.host, now),
            _same_arch(one, experiment),
            tuple(one.catalog.get("pythons", [])),
        )
        for one in able
    }
    by_arch: dict[tuple[str, str], list[Place]] = {}
    for place in single.values():
        by_arch.setdefault((place.device, place.arch), []).append(place)
    anywhere = [_any_of(group) for group in by_arch.values()]
    return sorted(
        [*anywhere, *single.values()],
        key=lambda place: (not place.same_arch, place.arch, place.host is not None),
    )


def _any_of(places: list[Place]) -> Place:
    first = places[0]
    state = "online" if any(place.state in USABLE for place in places) else first.state
    pythons = tuple(dict.fromkeys(name for place in places for name in place.pythons))
    return Place(None, first.device, first.arch, state, first.same_arch, pythons)


def _same_arch(accelerator: Accelerator, experiment: Experiment) -> bool:
    return (accelerator.device, accelerator.arch) == (experiment.device, experiment.arch)


@dataclass(frozen=True, slots=True)
class HostsInLine:
    """All hosts in one line of the overview."""

    states: dict[str, int]
    running: int
    waiting: int


def in_one_line() -> HostsInLine:
    """How many hosts are in which state, and how many tasks run and wait: 2 statements."""
    now = timezone.now()
    states: dict[str, int] = {}
    for host in Host.objects.filter(detached_at__isnull=True):
        state = state_of(host, now)
        states[state] = states.get(state, 0) + 1
    active = list(
        Task.objects.filter(state__in=(Task.State.QUEUED, Task.State.RUNNING)).values_list("state", flat=True)
    )
    return HostsInLine(states, active.count(Task.State.RUNNING), active.count(Task.State.QUEUED))
