"""A series for the API: every point with its samples, target and verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from hud.models import Series
from hud.pages.sql import fetch
from hud.pages.targets import Targets
from hud.pages.values import VALUE_COLUMNS, VERDICT_JOIN, MetricValue
from hud.runs.branches import branch_or_default, stored_names

MAX_POINTS = 2000  # of the latest


@dataclass(frozen=True)
class Stamp:
    """A series and its ETag."""

    series: Series
    branch: str
    etag: str


@dataclass(slots=True, kw_only=True)
class _Point(MetricValue):
    samples: list[float] | None
    commit: str
    branch: str
    source: str


@dataclass(slots=True)
class _State:
    rows: int
    latest_run: int | None
    latest_time: datetime | None
    verdicts: int
    waiting: bool | None  # for the judge; None: no rows
    targets: int


def series_stamp(experiment_id: int, metric_name: str, branch: str) -> Stamp | None:
    """Return the series with points of one branch ('' for all), and an ETag that changes with measurements,
    verdicts and targets; None if it does not exist."""
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
        SELECT count(*) AS rows, max(run_id) latest_run, max(order_time) latest_time,
            (SELECT count(*) FROM hud_verdict WHERE series_id = %(series)s) verdicts,
            bool_or(run_id IN (SELECT run_id FROM hud_unjudgedrun)) waiting,
            (SELECT coalesce(sum(hashtext(t::text)), 0) FROM hud_target t) targets
        FROM hud_measurement WHERE series_id = %(series)s
        """,
        {"series": series.pk},
    )
    text = f"{series.pk} {branch} {settings.HUD_DEFAULT_BRANCH} {state} {series.touched_at}"
    return Stamp(series, branch, hashlib.sha256(text.encode()).hexdigest()[:20])


def series_points(stamp: Stamp) -> dict[str, Any]:
    """Return the latest `MAX_POINTS` points, oldest first."""
    series = stamp.series
    found = fetch(
        _Point,
        f"""
        SELECT {VALUE_COLUMNS}, m.samples, r.commit, r.branch, r.source
        FROM hud_series s JOIN hud_measurement m ON m.series_id = s.id JOIN hud_run r ON r.id = m.run_id
        {VERDICT_JOIN}
        WHERE s.id = %(series)s AND (%(branches)s::text[] IS NULL OR r.branch = ANY(%(branches)s))
        ORDER BY m.order_time DESC, m.run_id DESC, m.repeat DESC, m.side DESC LIMIT %(limit)s
        """,  # noqa: S608 — constants  # nosec B608
        {
            "series": series.pk,
            "branches": stored_names(stamp.branch) if stamp.branch else None,
            "limit": MAX_POINTS,
        },
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
        "time": point.order_time.isoformat(),
        "commit": point.commit,
        "branch": branch_or_default(point.branch),
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
