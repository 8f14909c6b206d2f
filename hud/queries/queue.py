"""The queue: runs that work or wait, in the order in which they are served, and when each will start."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from hud import matching
from hud.queries.progress import PROCESSES, USUAL
from hud.queries.sql import fetch

SHOWN_RUNS = 50


@dataclass(slots=True)
class QueueLine:
    run: int
    title: str
    state: str
    watched: bool
    created: datetime
    who: str
    host: str  # that was asked for; '' any
    arch: str
    device: str
    labels: dict[str, str]
    environment: str
    base_environment: str
    tasks: int
    done: int
    fits: list[int]  # accelerators that could take it, now or later
    usable: list[int]  # those of them that take work now
    position: int | None = None  # runs that go ahead of it; None once it works
    starts_in_s: float | None = None  # None where it works already, or where nobody can say

    @property
    def queued(self) -> bool:
        return self.state == "queued"

    @property
    def order(self) -> tuple[bool, datetime, int]:
        """As `matching.ORDER` has it."""
        return not self.watched, self.created, self.run

    @property
    def wants(self) -> str:
        """Where it may go, in words."""
        place = f"host {self.host}" if self.host else "any host"
        texts = [place, self.arch or self.device, *(f"{key}={text}" for key, text in self.labels.items())]
        pythons = [self.environment, self.base_environment]
        return ", ".join([*filter(None, texts), *(f"Python {name}" for name in pythons if name)])

    @property
    def hindrance(self) -> str:
        """Why it cannot start now, where the reason is not the queue."""
        if not self.queued or self.usable:
            return ""
        return "no accelerator that fits takes work now" if self.fits else "no attached accelerator fits"

    def to_row(self) -> dict[str, Any]:
        return {
            "run": self.run, "title": self.title, "state": self.state, "position": self.position,
            "starts_in_s": self.starts_in_s, "wants": self.wants, "hindrance": self.hindrance,
            "requested_by": self.who, "watched": self.watched, "tasks": self.tasks, "done": self.done,
        }  # fmt: skip


@dataclass(slots=True)
class _Work:
    """Tasks of one kind that a run still has to do: one where it runs, all that wait together."""

    run: int
    accelerator: int | None  # where it runs
    tasks: int
    running_s: float
    usual_s: float | None

    @property
    def left_s(self) -> float | None:
        return None if self.usual_s is None else max(self.usual_s * self.tasks - self.running_s, 0.0)


@dataclass(slots=True)
class Queue:
    lines: list[QueueLine] = field(default_factory=list)
    more: int = 0  # runs behind those


def read(limit: int = SHOWN_RUNS) -> Queue:
    """What works comes first, then what waits: 2 statements."""
    lines = sorted(_lines(), key=lambda line: (line.queued, line.order))
    work = _work()
    for line in lines:
        if line.queued:
            rivals = [other for other in lines if set(other.fits) & set(line.fits)]
            line.position = sum(not other.queued or other.order < line.order for other in rivals)
            line.starts_in_s = _starts_in_s(line, lines, work)
    return Queue(lines[:limit], max(len(lines) - limit, 0))


def _starts_in_s(line: QueueLine, lines: list[QueueLine], work: list[_Work]) -> float | None:
    """What runs on the accelerators it could use now, and what goes ahead of it there, shared among them."""
    mine = set(line.usable)
    earlier = {other.run for other in lines if other.order < line.order and mine & set(other.fits)}
    left = [
        part.left_s
        for part in work
        if (part.run in earlier if part.accelerator is None else part.accelerator in mine)
    ]
    known = [seconds for seconds in left if seconds is not None]
    return round(sum(known) / len(mine), 1) if mine and len(known) == len(left) else None


def _lines() -> list[QueueLine]:
    takes = f"{matching.OPEN} AND {matching.HEARD}"
    return fetch(
        QueueLine,
        f"""
        SELECT r.id, r.title, r.state, r.watched, r.created, r.requested_by, coalesce(wanted.name, ''),
            r.arch, r.device, r.labels::json, r.environment, r.base_environment,
            tasks.n, tasks.done, coalesce(places.fits, '{{}}'), coalesce(places.usable, '{{}}')
        FROM hud_run r LEFT JOIN hud_host wanted ON wanted.id = r.host_id
        CROSS JOIN LATERAL (
            SELECT count(*) n, count(finished) done FROM hud_task WHERE run_id = r.id
        ) tasks
        CROSS JOIN LATERAL (
            SELECT array_agg(a.id) fits, array_agg(a.id) FILTER (WHERE {takes}) usable
            FROM hud_accelerator a JOIN hud_host h ON h.id = a.host_id WHERE {matching.FITS}
        ) places
        WHERE r.state IN ('queued', 'running')
        """,  # noqa: S608 - constants of ours
        {"lost": settings.HUD_LOST_S},
    )


def _work() -> list[_Work]:
    return fetch(
        _Work,
        f"""
        WITH work AS (
            SELECT t.run_id, CASE WHEN t.state = 'running' THEN t.accelerator_id END accelerator_id,
                jsonb_build_object('suite', t.spec->'suite', 'case', t.spec->'case',
                    'dtype', t.spec->'dtype', 'device', t.spec->'device',
                    'mode', t.spec->'mode', 'backend', t.spec->'backend') spec,
                count(*) tasks,
                coalesce(sum(extract(epoch FROM now() - t.started)) FILTER (WHERE t.state = 'running'), 0)
                    running_s
            FROM hud_task t WHERE t.state IN ('queued', 'running')
            GROUP BY 1, 2, 3
        ), kinds AS (SELECT DISTINCT spec, NULL::timestamptz finished FROM work)
        SELECT work.run_id, work.accelerator_id, work.tasks, work.running_s::float8,
            known.seconds * {PROCESSES.format("work")}
        FROM work JOIN (SELECT t.spec, usual.seconds FROM kinds t {USUAL}) known USING (spec)
        """,  # noqa: S608 - constants of this room
        {},
    )
