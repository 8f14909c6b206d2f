"""One series as the API gives it: every point with its samples, target and verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hud.models import Series
from hud.pages.sql import fetch
from hud.pages.targets import Targets
from hud.pages.values import VALUE_COLUMNS, VERDICT_JOIN, MetricValue

MAX_POINTS = 2000  # of the latest


@dataclass(frozen=True)
class Stamp:
    """A series and what its answer depends on."""

    series: Series
    etag: str


@dataclass(slots=True, kw_only=True)
class _Point(MetricValue):
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
        SELECT count(*) AS rows, max(run_id) latest_run, max(at) latest_at,
            (SELECT count(*) FROM hud_verdict WHERE series_id = %(series)s) verdicts,
            bool_or(run_id IN (SELECT run_id FROM hud_touchedrun)) waiting,
            (SELECT coalesce(sum(hashtext(t::text)), 0) FROM hud_target t) targets
        FROM hud_measurement WHERE series_id = %(series)s
        """,
        {"series": series.pk},
    )
    text = f"{series.pk} {state} {series.touched_at}"
    return Stamp(series, hashlib.sha256(text.encode()).hexdigest()[:20])


def series_points(stamp: Stamp) -> dict[str, Any]:
    """The latest `MAX_POINTS` points, oldest first."""
    series = stamp.series
    found = fetch(
        _Point,
        f"""
        SELECT {VALUE_COLUMNS}, m.samples, r.commit, r.source
        FROM hud_series s JOIN hud_measurement m ON m.series_id = s.id JOIN hud_run r ON r.id = m.run_id
        {VERDICT_JOIN}
        WHERE s.id = %(series)s ORDER BY m.at DESC, m.run_id DESC, m.repeat DESC, m.side DESC LIMIT %(limit)s
        """,  # noqa: S608 — constants of the room
        {"series": series.pk, "limit": MAX_POINTS},
    )
    targets = Targets.read()
    points = [_row(point.show(series.experiment, series.metric, targets)) for point in reversed(found)]
    return {
        "unit": series.metric.unit,
        "direction": series.metric.direction,
        "points": points,
        "next": None,
    }


def _row(point: _Point) -> dict[str, Any]:
    own = point.own_target
    return {
        "run": point.run_id,
        "time": point.at.isoformat(),
        "commit": point.commit,
        "value": point.median,
        "samples": point.samples or ([] if point.median is None else [point.median]),
        "n": point.n,
        "status": point.status,
        "code": point.code,
        "target": own.value if own else point.target,
        "target_arch": None if own else point.target_arch,
        "target_met": {"met": True, "missed": False}.get(point.met),
        "verdict": point.verdict or None,
        "source": point.source,
        "process": point.process,
    }
