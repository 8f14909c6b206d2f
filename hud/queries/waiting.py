"""Why a queued run waits: its place in the queue, and what keeps each accelerator that fits from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Subquery
from django.db.models.expressions import RawSQL
from django.utils import timezone

from hud import matching
from hud.hosts import state_of
from hud.matching import Wish
from hud.models import Accelerator, Run, Task
from hud.queries.progress import starts_in_s
from hud.runs import queue_position

SHOWN_PLACES = 8


@dataclass(slots=True)
class Place:
    """What a host, or one accelerator of it, does instead of taking the run."""

    name: str  # of the host, with its accelerator where only that one is meant
    state: str  # lost, paused, drained, dirty, busy or idle
    since: datetime | None = None  # when a lost host was last heard
    until: datetime | None = None  # of a pause
    note: str = ""
    run: int | None = None  # that it is busy with

    def to_row(self) -> dict[str, Any]:
        names = ("name", "state", "since", "until", "note", "run")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class Waiting:
    position: int  # runs that go ahead of it
    starts_in_s: float | None  # None where nobody can say
    places: list[Place] = field(default_factory=list)
    lacking: str = ""  # why no attached accelerator could ever take it

    @property
    def open(self) -> bool:
        """Something that fits takes work now: only the queue is before it."""
        return any(place.state in ("busy", "idle") for place in self.places)

    @property
    def shown(self) -> list[Place]:
        return self.places[:SHOWN_PLACES]

    @property
    def more(self) -> int:
        return max(len(self.places) - SHOWN_PLACES, 0)

    def to_row(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "starts_in_s": self.starts_in_s,
            "places": [place.to_row() for place in self.places],
            "lacking": self.lacking,
        }


def read(run: Run) -> Waiting | None:
    """3 statements for a queued run, one more where nothing fits it; None for any other."""
    position = queue_position(run)
    if position is None:
        return None
    waiting = Waiting(position, starts_in_s(run), _places(run))
    if not waiting.places:
        waiting.lacking = _lacking(run)
    return waiting


# Accelerators that could take the run, now or later.
_FITTING = f"""
    SELECT a.id FROM hud_run r JOIN hud_accelerator a ON true JOIN hud_host h ON h.id = a.host_id
    WHERE r.id = %s AND {matching.FITS}
"""  # noqa: S608 - a constant of ours


def _places(run: Run) -> list[Place]:
    now = timezone.now()
    working = Task.objects.filter(accelerator=OuterRef("pk"), state=Task.State.RUNNING)
    found = (
        Accelerator.objects.filter(pk__in=RawSQL(_FITTING, [run.pk]))  # noqa: S611 - the id is a parameter
        .select_related("host")
        .annotate(busy_with=Subquery(working.values("run")[:1]))
        .order_by("host__name", "name")
    )
    places = [_place(one, one.busy_with, now) for one in found]
    # what holds for a whole host is said once
    return list({(place.name, place.state): place for place in places}.values())


def _place(accelerator: Accelerator, busy_with: int | None, now: datetime) -> Place:
    host = accelerator.host
    state = state_of(host, now)
    if state == "lost":
        return Place(host.name, state, since=host.last_beat)
    if state in ("paused", "drained"):
        return Place(host.name, state, until=host.paused_until if state == "paused" else None, note=host.note)
    name = f"{host.name} {accelerator.name}"
    if accelerator.dirty:
        return Place(name, "dirty", note=accelerator.dirty)
    return Place(name, "busy" if busy_with else "idle", run=busy_with)


def _lacking(run: Run) -> str:
    wish = Wish(run.device, run.host, run.arch, run.labels, run.environment, run.base_environment)
    suite = run.request.get("suite", "")
    return matching.fitting(wish, {suite}, matching.attached())[1] or "no attached accelerator fits"
