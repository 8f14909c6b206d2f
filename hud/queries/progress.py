"""How far a run is, when it will be done or start: from what its tasks took before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings

from hud import matching
from hud.models import ACTIVE, Run, State
from hud.queries.sql import fetch

# How many processes a task has; put in the alias of what has its run's id.
PROCESSES = "(SELECT CASE WHEN base_environment = '' THEN 1 ELSE 2 END FROM hud_run WHERE id = {}.run_id)"
# Median of the seconds that a process of earlier tasks of the same kind took on the same device; `t` is the
# task, of which its spec and end are read.
USUAL = f"""
    LEFT JOIN LATERAL (
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY past.seconds) seconds
        FROM (
            SELECT extract(epoch FROM p.finished - p.started) / {PROCESSES.format("p")} seconds
            FROM hud_task p
            WHERE t.finished IS NULL AND p.state = 'done' AND p.status = 'ok'
              AND p.spec->>'suite' = t.spec->>'suite' AND p.spec->>'case' = t.spec->>'case'
              AND p.spec->>'dtype' = t.spec->>'dtype' AND p.spec->>'device' = t.spec->>'device'
              AND p.spec->>'mode' = t.spec->>'mode' AND p.spec->>'backend' = t.spec->>'backend'
            ORDER BY p.id DESC LIMIT 10
        ) past
    ) usual ON true
"""  # noqa: S608 - constants of this file


@dataclass(frozen=True)
class Progress:
    done: int
    total: int
    eta_s: float | None  # None where it cannot be known: ended, or never measured before


@dataclass(slots=True)
class _Work:
    ended: bool
    running_s: float | None  # since it started
    usual_s: float | None  # median of earlier tasks of the same case on the same device


@dataclass(slots=True)
class _Ahead(_Work):
    accelerators: int = 0


def progress_of(run: Run) -> Progress:
    """Tasks done of all; `eta_s` only while every remaining task has been done before somewhere."""
    work = fetch(
        _Work,
        f"""
        SELECT t.finished IS NOT NULL,
            CASE WHEN t.state <> 'queued' THEN extract(epoch FROM now() - t.started)::float8 END,
            usual.seconds * {PROCESSES.format("t")}
        FROM hud_task t {USUAL}
        WHERE t.run_id = %(run)s
        """,  # noqa: S608 - constants of this room
        {"run": run.pk},
    )
    done = sum(task.ended for task in work)
    remaining = [task for task in work if not task.ended]
    left_s = _left_s(remaining) if run.state in ACTIVE and remaining else None
    return Progress(done, len(work), left_s)


def starts_in_s(run: Run) -> float | None:
    """When a queued run will probably start: what goes ahead of it on the accelerators that it could use
    and that take work now, shared among them. None once it has started, where there is no such
    accelerator, or where a task ahead was never done before. One statement."""
    if run.state != State.QUEUED:
        return None
    work = fetch(
        _Ahead,
        f"""
        WITH mine AS (
            SELECT a.id FROM hud_run r JOIN hud_accelerator a ON true JOIN hud_host h ON h.id = a.host_id
            WHERE r.id = %(run)s AND {matching.FITS} AND {matching.OPEN} AND {matching.HEARD}
        ), ahead AS (
            SELECT t.* FROM hud_task t JOIN hud_run r ON r.id = t.run_id
            WHERE t.state = 'running' AND t.accelerator_id IN (SELECT id FROM mine)
               OR t.state = 'queued' AND r.state IN ('queued', 'running') AND r.id <> %(run)s
              AND ({matching.ORDER}) < (NOT %(watched)s, %(created)s, %(run)s)
              AND EXISTS (
                SELECT 1 FROM mine JOIN hud_accelerator a USING (id) JOIN hud_host h ON h.id = a.host_id
                WHERE {matching.FITS})
        )
        SELECT t.id IS NULL,
            CASE WHEN t.state = 'running' THEN extract(epoch FROM now() - t.started)::float8 END,
            usual.seconds * {PROCESSES.format("t")}, mine.n
        FROM (SELECT count(*) n FROM mine) mine LEFT JOIN ahead t ON true {USUAL}
        """,  # noqa: S608 - constants of this room
        {"run": run.pk, "watched": run.watched, "created": run.created, "lost": settings.HUD_LOST_S},
    )
    accelerators = work[0].accelerators
    ahead_s = _left_s([task for task in work if not task.ended])
    return round(ahead_s / accelerators, 1) if accelerators and ahead_s is not None else None


def _left_s(tasks: Sequence[_Work]) -> float | None:
    """What they will still take, one after the other; None where one of them was never done before."""
    left_s = 0.0
    for task in tasks:
        if task.usual_s is None:
            return None
        left_s += max(task.usual_s - (task.running_s or 0.0), 0.0)
    return round(left_s, 1)
