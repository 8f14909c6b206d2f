"""A series for the API: every point with its compilations, samples, target and verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby
from typing import Any

from django.conf import settings

from hud.models import Series, compilation_key
from hud.pages.experiment.multiples import levels_of
from hud.sql import fetch
from hud.points.targets import Targets
from hud.pages.values import (
    VALUE_COLUMNS,
    VERDICT_JOIN,
    MetricValue,
    compilation_medians,
    over_processes,
)
from hud.runs.branches import branch_or_default, stored_names

MAX_POINTS = 2000  # of one page
Levels = dict[str, tuple[float | None, datetime | None]]  # by class of environments: value and first time


class BadCursor(ValueError):
    """The cursor is none that an earlier page gave."""


@dataclass(frozen=True)
class Filters:
    """Which points of a series: '' and None mean all. `since` and `until` are days, both included; `cursor`
    is the `next` of an earlier page."""

    branch: str = ""
    since: date | None = None
    until: date | None = None
    cursor: str = ""


@dataclass(frozen=True)
class Stamp:
    """A series and its ETag."""

    series: Series
    filters: Filters
    etag: str


@dataclass(slots=True)
class _Point(MetricValue):
    samples: list[float] | None
    commit: str
    branch: str
    source: str
    variant: str | None
    class_key: str
    baseline: float | None


@dataclass(slots=True)
class _State:
    rows: int
    latest_run: int | None
    latest_time: datetime | None
    verdicts: int
    levels: int
    waiting: bool | None  # for the judge; None: no rows
    targets: int
    variants: int


def series_stamp(experiment_id: int, metric_name: str, filters: Filters) -> Stamp | None:
    """Return the series, and an ETag that changes with measurements, compilations, verdicts and targets; None
    if it does not exist."""
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
            (SELECT coalesce(sum(hashtext(s.level::text)), 0) FROM hud_seriesstate s
            WHERE s.series_id = %(series)s) levels,
            bool_or(run_id IN (SELECT run_id FROM hud_unjudgedrun)) waiting,
            (SELECT coalesce(sum(hashtext(t::text)), 0) FROM hud_target t) targets,
            (SELECT coalesce(sum(hashtext(variant)), 0) FROM hud_compilation
            WHERE experiment_id = %(experiment)s) variants
        FROM hud_measurement WHERE series_id = %(series)s
        """,
        {"series": series.pk, "experiment": experiment_id},
    )
    text = f"{series.pk} {filters} {settings.HUD_DEFAULT_BRANCH} {state} {series.touched_at}"
    return Stamp(series, filters, hashlib.sha256(text.encode()).hexdigest()[:20])


def series_points(stamp: Stamp) -> dict[str, Any]:
    """Return a page of at most `MAX_POINTS` points, oldest first. The first page has the latest points,
    `next` leads to those before them. Raise BadCursor."""
    series, filters = stamp.series, stamp.filters
    time, run, environment, side = _place_of(filters.cursor) if filters.cursor else (None, None, None, None)
    found = fetch(
        _Point,
        f"""
        WITH points AS (
            SELECT m.order_time, m.run_id, m.environment_id, m.side
            FROM hud_measurement m JOIN hud_run r ON r.id = m.run_id
            WHERE m.series_id = %(series)s
                AND (%(branches)s::text[] IS NULL OR r.branch = ANY(%(branches)s))
                AND (%(since)s::date IS NULL OR m.order_time >= %(since)s::date)
                AND (%(until)s::date IS NULL OR m.order_time < %(until)s::date + 1)
                AND (%(time)s::timestamptz IS NULL OR (m.order_time, m.run_id, m.environment_id, m.side)
                    < (%(time)s::timestamptz, %(run)s::int, %(environment)s::int, %(side)s::int))
            GROUP BY 1, 2, 3, 4 ORDER BY 1 DESC, 2 DESC, 3 DESC, 4 DESC LIMIT %(limit)s
        )
        SELECT {VALUE_COLUMNS}, m.samples, r.commit, r.branch, r.source, nullif(c.variant, '') variant,
            e.class_key, v.baseline
        FROM points p
        JOIN hud_measurement m ON m.series_id = %(series)s AND m.run_id = p.run_id
            AND m.environment_id = p.environment_id AND m.side = p.side
        JOIN hud_series s ON s.id = m.series_id
        JOIN hud_run r ON r.id = m.run_id
        JOIN hud_environment e ON e.id = m.environment_id
        LEFT JOIN hud_compilation c ON c.run_id = m.run_id AND c.experiment_id = s.experiment_id
            AND c.environment_id = m.environment_id AND c.repeat = m.repeat AND c.side = m.side
        {VERDICT_JOIN}
        ORDER BY m.order_time, m.run_id, m.environment_id, m.side, m.repeat
        """,  # noqa: S608 — constants  # nosec B608
        {
            "series": series.pk,
            "branches": stored_names(filters.branch) if filters.branch else None,
            "since": filters.since,
            "until": filters.until,
            "time": time,
            "run": run,
            "environment": environment,
            "side": side,
            "limit": MAX_POINTS + 1,
        },
    )
    targets = Targets.read()
    levels = {state.class_key: state.accepted for state in levels_of([series.pk])}
    groups = groupby(found, key=lambda row: (row.order_time, row.run_id, row.environment_id, row.side))
    points = [(place, list(processes)) for place, processes in groups]
    page = points[-MAX_POINTS:]
    return {
        "unit": series.metric.unit,
        "direction": series.metric.direction,
        "points": [_row(processes, series, targets, levels) for _place, processes in page],
        "next": _cursor(page[0][0]) if len(points) > MAX_POINTS else None,
    }


def _cursor(place: tuple[datetime, int, int, int]) -> str:
    time, *ids = place
    return "_".join((time.isoformat().replace("+00:00", "Z"), *map(str, ids)))


def _place_of(cursor: str) -> tuple[datetime, int, int, int]:
    try:
        time, *ids = cursor.split("_")
        run, environment, side = map(int, ids)
        place = datetime.fromisoformat(time.replace("Z", "+00:00")), run, environment, side
    except ValueError as error:
        raise BadCursor("the cursor is none that an earlier answer gave") from error
    if place[0].tzinfo is None or not all(0 <= number < 2**31 for number in place[1:]):
        raise BadCursor("the cursor is none that an earlier answer gave")
    return place


def _row(processes: list[_Point], series: Series, targets: Targets, levels: Levels) -> dict[str, Any]:
    point = over_processes(processes).show(series.experiment, series.metric, targets)
    own = point.own_target
    samples = [one.samples or ([] if one.median is None else [one.median]) for one in processes]
    return {
        "run": point.run_id,
        "time": point.order_time.isoformat(),
        "commit": point.commit,
        "branch": branch_or_default(point.branch),
        "value": point.median,
        "samples": [sample for of_process in samples for sample in of_process],
        "n": point.n,
        "status": point.status,
        "code": point.code,
        "target": own.value if own else point.target,
        "target_arch": None if own else point.target_arch,
        "target_met": {"met": True, "missed": False}.get(point.met),
        "verdict": point.verdict or None,
        "level": _level(processes[0], levels),
        "source": point.source,
        "process": processes[0].process,
        "compilations": _compilations(processes),
    }


def _level(point: _Point, levels: Levels) -> float | None:
    """Return the accepted level that a point was judged against; None before it began, where no verdict
    keeps it."""
    if point.baseline is not None:
        return point.baseline
    level, start = levels.get(point.class_key, (None, None))
    return level if start and point.order_time >= start else None


def _compilations(processes: list[_Point]) -> list[dict[str, Any]]:
    """Return each compilation that gave a value, with the number of its samples; the variant is None where
    its kernels are not known."""
    found = []
    for key, value in compilation_medians(processes):
        of_it = [one for one in processes if compilation_key(one.compilation, one.repeat) == key]
        variant = next((one.variant for one in of_it if one.variant), None)
        found.append({"variant": variant, "value": value, "n": sum(one.n for one in of_it)})
    return found
