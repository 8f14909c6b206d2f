"""The points of a side as arrays: of each series its newest in the side's runs.

A comparison has thousands of points of which a page shows a few, so that only these become objects. Reading a
side of 4,000 points takes 1.4 ms of CPU as arrays and 8.3 ms as dataclasses; the whole page may take 25.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from hud.models import NEVER_RAN, STATUS_CODES, STATUS_NAMES
from hud.pages.compare.sides import Side
from hud.sql import fetch_columns, fetch_tuples, int_array

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# The fields of `Points`. A side of an A/B run was not judged: its noise is that of the series' newest point.
_COLUMNS = """
    SELECT array_send(array_agg(series_id)), array_send(array_agg(experiment_id)),
        array_send(array_agg(metric_id)), array_send(array_agg(run_id)),
        array_send(array_agg(environment_id)), array_send(array_agg(coalesce(value, 'NaN'))),
        array_send(array_agg(status)),
        array_send(array_agg(CASE WHEN "values" IS NULL THEN (value IS NOT NULL)::int
            ELSE cardinality(array_remove("values", NULL)) END)),
        array_send(array_agg(coalesce(noise::float8, 'NaN'))),
        array_send(array_agg(coalesce(level_points, 0)))
"""
_OF_SERIES = """p.series_id, s.experiment_id, s.metric_id, p.run_id, p.environment_id, p.value, p.status,
    p."values", noise, level_points"""
_RAN = "metric_id = ANY(%(metrics)s) AND (value IS NOT NULL OR status <> ALL(%(never_ran)s))"
_NEWEST_FIRST = "order_time DESC, run_id DESC, environment_id DESC"
_OF_RUNS = f"""{_COLUMNS} FROM (
    SELECT DISTINCT ON (p.series_id) {_OF_SERIES} FROM hud_point p JOIN hud_series s ON s.id = p.series_id
    WHERE run_id = ANY(%(runs)s::int[]) AND {_RAN} ORDER BY p.series_id, {_NEWEST_FIRST}) point
"""  # noqa: S608 — constants, as below  # nosec B608
_OF_AB_SIDE = f"""{_COLUMNS} FROM (
    SELECT {_OF_SERIES} FROM hud_sidepoint p JOIN hud_series s ON s.id = p.series_id
    LEFT JOIN LATERAL (
        SELECT noise, level_points FROM hud_point WHERE series_id = s.id AND noise IS NOT NULL
        ORDER BY order_time DESC LIMIT 1
    ) judged ON true
    WHERE run_id = ANY(%(runs)s::int[]) AND side = %(ab_side)s AND {_RAN}) point
"""  # noqa: S608  # nosec B608
_NEWEST = f"""{_COLUMNS} FROM (
    SELECT {_OF_SERIES} FROM hud_series s CROSS JOIN LATERAL (
        SELECT * FROM hud_point
        WHERE series_id = s.id AND order_time >= %(start)s AND run_id = ANY(%(runs)s::int[]) AND {_RAN}
        ORDER BY {_NEWEST_FIRST} LIMIT 1
    ) p WHERE s.stream_id = %(stream)s) point
"""  # noqa: S608  # nosec B608


@dataclass(slots=True)
class Point:
    """A point that is judged or shown. `add_details` adds the last five."""

    place: int  # of its side
    series_id: int
    experiment_id: int
    metric_id: int
    run_id: int
    environment_id: int
    value: float | None
    status: str
    compilations: int  # that gave a number
    ab_side: int | None = None
    values: list[float] = field(default_factory=list)  # of each of these
    variants: list[str | None] = field(default_factory=list)  # choices of the compilations, where known
    cards: list[str] | None = None  # of its series' level
    code: str | None = None
    note: str | None = None

    @property
    def good(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Points:
    """The points of a side that ran, one element each. A missing value or noise is NaN; `count` is the number
    of compilations that gave a value, `level_points` over how many points the noise is known."""

    side: Side = field(repr=False)
    series: Ints
    experiment: Ints
    metric: Ints
    run: Ints
    environment: Ints
    value: Floats
    status: Ints
    count: Ints
    noise: Floats
    level_points: Ints

    def points(self, indexes: Ints, place: int) -> list[Point]:
        columns = (self.series, self.experiment, self.metric, self.run, self.environment)
        ids = zip(*(column[indexes].tolist() for column in columns), strict=True)
        values = [None if math.isnan(value) else value for value in self.value[indexes].tolist()]
        statuses = [STATUS_NAMES[status] for status in self.status[indexes].tolist()]
        counts, ab_side = self.count[indexes].tolist(), self.side.ab_side
        return [
            Point(place, series, experiment, metric, run, environment, value, status, count, ab_side)
            for (series, experiment, metric, run, environment), value, status, count in zip(
                ids, values, statuses, counts, strict=True
            )
        ]

    def where(self, chosen: Bools) -> Points:
        arrays = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "side"}
        return Points(self.side, **{name: array[chosen] for name, array in arrays.items()})


def read(side: Side, metrics: Collection[int]) -> Points:
    """Return the points of these metrics: 1 statement."""
    if side.ab_side is not None:
        statement = _OF_AB_SIDE
    else:
        statement = _OF_RUNS if side.kind in {"run", "commit", "night"} else _NEWEST
    columns = fetch_columns(
        statement,
        {
            "runs": int_array(side.runs),
            "metrics": list(metrics),
            "never_ran": [STATUS_CODES[name] for name in NEVER_RAN],
            "ab_side": side.ab_side,
            "start": side.start,
            "stream": side.newest.stream_id,
        },
    )
    return Points(side, *columns)


def add_details(points: Iterable[Point]) -> None:
    """Add values and variants of the compilations, the cards of the level, the outside system's code and the
    note of these points: 1 statement, none without points."""
    by_key: dict[tuple[int | None, ...], list[Point]] = {}
    for point in points:
        key = point.run_id, point.series_id, point.environment_id, point.ab_side
        by_key.setdefault(key, []).append(point)
    if not by_key:
        return
    runs, series, environments, ab_sides = zip(*by_key, strict=True)
    rows = fetch_tuples(
        """
        SELECT w.*, p.value, p."values", p.variants, p.code, p.note, (
            SELECT ARRAY(SELECT jsonb_array_elements_text(state.level->'cards'))
            FROM hud_seriesstate state JOIN hud_environment e ON e.class_key = state.class_key
            WHERE state.series_id = w.series_id AND e.id = w.environment_id
        )
        FROM unnest(%(runs)s::int[], %(series)s::int[], %(environments)s::int[], %(ab_sides)s::int[])
            AS w(run_id, series_id, environment_id, side)
        CROSS JOIN LATERAL (
            SELECT order_time, value, "values", variants, code, note FROM hud_point
            WHERE w.side IS NULL AND run_id = w.run_id AND series_id = w.series_id
                AND environment_id = w.environment_id
            UNION ALL
            SELECT order_time, value, "values", variants, code, note FROM hud_sidepoint
            WHERE run_id = w.run_id AND series_id = w.series_id AND environment_id = w.environment_id
                AND side = w.side
        ) p ORDER BY p.order_time
        """,
        {
            "runs": list(runs),
            "series": list(series),
            "environments": list(environments),
            "ab_sides": list(ab_sides),
        },
    )
    for *own, value, values, variants, code, note, cards in rows:
        numbers = [number for number in (values or [value]) if number is not None]
        for point in by_key[tuple(own)]:
            point.values, point.variants = numbers, variants or []
            point.code, point.note, point.cards = code, note, cards
