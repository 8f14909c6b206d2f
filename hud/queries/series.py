"""One series as the API gives it: every point with its samples, target and verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hud.models import Series
from hud.queries.sql import fetch
from hud.queries.targets import Targets
from hud.queries.values import VALUE_COLUMNS, VERDICT_JOIN, Value, reading

MAX_POINTS = 2000  # of the latest


@dataclass(frozen=True)
class Stamp:
    """A series and what its answer depends on."""

    series: Series
    etag: str


@dataclass(slots=True)
class _Origin:
    run_id: int
    environment_id: int
    process: int
    samples: list[float] | None
    commit: str
    source: str


@dataclass(slots=True)
class _State:
    rows: int
    latest_run: int | None
    latest_at: datetime | None
    verdicts: int
    waiting: bool | None  # for the judge; None: no rows
    targets: int


def series_stamp(experiment_id: int, metric_name: str) -> Stamp | None:
    """The series, or None. Its ETag changes with its measurements, verdicts and the targets."""
    series = (
        Series.objects.select_related("experiment", "metric")
        .filter(experiment_id=experiment_id, metric__name=metric_name)
        .first()
    )
    if series is None:
        return None
    (state,) = fetch(
        _State,
        """
        SELECT count(*), max(run_id), max(at),
            (SELECT count(*) FROM hud_verdict WHERE series_id = %(series)s),
            bool_or(run_id IN (SELECT run_id FROM hud_touchedrun)),
            (SELECT coalesce(sum(hashtext(t::text)), 0) FROM hud_target t)
        FROM hud_measurement WHERE series_id = %(series)s
        """,
        {"series": series.pk},
    )
    text = f"{series.pk} {state} {series.touched_at}"
    return Stamp(series, hashlib.sha256(text.encode()).hexdigest()[:20])


def series_points(stamp: Stamp) -> dict[str, Any]:
    """The latest `MAX_POINTS` points, oldest first."""
    series = stamp.series
    params = {"series": series.pk, "limit": MAX_POINTS}
    values = fetch(
        Value,
        f"""
        SELECT * FROM (
            SELECT {VALUE_COLUMNS}
            FROM hud_series s JOIN hud_measurement m ON m.series_id = s.id {VERDICT_JOIN}
            WHERE s.id = %(series)s ORDER BY m.at DESC, m.run_id DESC, m.process DESC LIMIT %(limit)s
        ) newest ORDER BY at, run_id, process
        """,  # noqa: S608 — constants of the room
        params,
    )
    origins = {
        (origin.run_id, origin.environment_id, origin.process): origin
        for origin in fetch(
            _Origin,
            """
            SELECT m.run_id, m.environment_id, m.process, m.samples, r."commit", r.source
            FROM hud_measurement m JOIN hud_run r ON r.id = m.run_id WHERE m.series_id = %(series)s
            ORDER BY m.at DESC, m.run_id DESC, m.process DESC LIMIT %(limit)s
            """,
            params,
        )
    }
    targets = Targets.read()
    points = [
        _point(series, value, origins[value.run_id, value.environment_id, value.process], targets)
        for value in values
    ]
    return {
        "unit": series.metric.unit,
        "direction": series.metric.direction,
        "points": points,
        "next": None,
    }


def _point(series: Series, value: Value, origin: _Origin, targets: Targets) -> dict[str, Any]:
    one = reading(series.experiment, series.metric, value, targets)
    own = one.own_target
    alone = [] if value.median is None else [value.median]
    return {
        "run": value.run_id,
        "time": value.at.isoformat(),
        "commit": origin.commit,
        "value": value.median,
        "samples": origin.samples or alone,
        "n": value.n,
        "status": value.status,
        "code": value.code,
        "target": own.value if own else value.target,
        "target_arch": None if own else value.target_arch,
        "target_met": {"met": True, "missed": False}.get(one.met),
        "verdict": value.verdict or None,
        "source": origin.source,
        "process": value.process,
    }
