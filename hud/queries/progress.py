"""How far a run is, and when it will be done: from what its tasks took before. Two statements."""

from __future__ import annotations

from dataclasses import dataclass

from hud.models import ACTIVE, Run
from hud.queries.sql import fetch


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


def progress_of(run: Run) -> Progress:
    """Tasks done of all; `eta_s` only while every remaining task has been done before somewhere."""
    work = fetch(
        _Work,
        """
        SELECT t.finished IS NOT NULL, extract(epoch FROM now() - t.started)::float8, usual.seconds
        FROM hud_task t
        LEFT JOIN LATERAL (
            SELECT percentile_cont(0.5)
                WITHIN GROUP (ORDER BY extract(epoch FROM past.finished - past.started)) seconds
            FROM (
                SELECT p.started, p.finished FROM hud_task p
                WHERE t.finished IS NULL AND p.state = 'done' AND p.status = 'ok'
                  AND p.spec->>'suite' = t.spec->>'suite' AND p.spec->>'case' = t.spec->>'case'
                  AND p.spec->>'dtype' = t.spec->>'dtype' AND p.spec->>'device' = t.spec->>'device'
                ORDER BY p.id DESC LIMIT 10
            ) past
        ) usual ON true
        WHERE t.run_id = %(run)s
        """,
        {"run": run.pk},
    )
    done = sum(task.ended for task in work)
    remaining = [task for task in work if not task.ended]
    usual = [task.usual_s for task in remaining]
    if run.state not in ACTIVE or not remaining or any(seconds is None for seconds in usual):
        return Progress(done, len(work), None)
    left_s = sum(
        max((seconds or 0.0) - (task.running_s or 0.0), 0.0)
        for task, seconds in zip(remaining, usual, strict=True)
    )
    return Progress(done, len(work), round(left_s, 1))
