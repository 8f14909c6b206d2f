"""The points of a side as arrays: of each series its newest in the side's runs.

A comparison has thousands of points of which a page shows a few, so that only these become objects.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hud.models import NEVER_RAN, STATUS_NAMES
from hud.pages.compare.sides import Side
from hud.sql import fetch_columns, fetch_tuples, int_array
from runner.schema.statistics import severity

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SEVERITY = np.array([severity(STATUS_NAMES[code]) for code in sorted(STATUS_NAMES)])
_BY_SEVERITY = {severity(name): code for code, name in STATUS_NAMES.items()}
_IS_NEVER_RAN = np.array([STATUS_NAMES[code] in NEVER_RAN for code in sorted(STATUS_NAMES)])
_WHOLE_RUNS = 2
_KEYS = 2**17  # more than there are numbers of compilations and processes

_COLUMNS = """
    SELECT array_send(array_agg(m.series_id)), array_send(array_agg(s.experiment_id)),
        array_send(array_agg(s.metric_id)), array_send(array_agg(m.run_id)),
        array_send(array_agg(m.environment_id)), array_send(array_agg(m.order_time)),
        array_send(array_agg(coalesce(m.compilation, -1 - m.repeat))),
        array_send(array_agg(coalesce(m.value, 'NaN'))), array_send(array_agg(m.status))
"""
_OF_RUNS = f"""{_COLUMNS}
    FROM hud_measurement m JOIN hud_series s ON s.id = m.series_id
    WHERE m.run_id = ANY(%(runs)s::int[]) AND s.metric_id = ANY(%(metrics)s)
        AND (%(ab_side)s < 0 OR m.side = %(ab_side)s)
"""
# The newest runs as a whole, which costs a tenth of looking each series up; of the series that these lack,
# from the newest measurement backwards: what older runs have is never read. No measurement is older than its
# run, which has the time of its earliest.
_NEWEST = f"""{_COLUMNS}
    FROM (
        SELECT series_id, run_id, environment_id, order_time, compilation, repeat, value, status
        FROM hud_measurement WHERE run_id = ANY(%(newest)s::int[])
        UNION ALL
        SELECT one.* FROM hud_series lacking CROSS JOIN LATERAL (
            SELECT series_id, run_id, environment_id, order_time, compilation, repeat, value, status
            FROM hud_measurement
            WHERE series_id = lacking.id AND order_time >= %(start)s AND run_id = ANY(%(runs)s::int[])
            ORDER BY order_time DESC, run_id DESC FETCH FIRST ROW WITH TIES
        ) one
        WHERE lacking.metric_id = ANY(%(metrics)s) AND lacking.id NOT IN (
            SELECT series_id FROM hud_measurement WHERE run_id = ANY(%(newest)s::int[]))
    ) m JOIN hud_series s ON s.id = m.series_id
    WHERE s.metric_id = ANY(%(metrics)s)
"""  # noqa: S608 — constants  # nosec B608


@dataclass(slots=True)
class Point:
    """The measurements of a series in one run and environment, over all its processes."""

    place: int  # of its side
    series_id: int
    experiment_id: int
    metric_id: int
    run_id: int
    environment_id: int
    values: list[float]  # a number for each compilation that gave one
    value: float | None
    status: str  # of the worst process, but ok where another one gave a number
    ab_side: int | None = None
    code: str | None = None  # these two by `add_words`
    note: str | None = None

    @property
    def good(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Points:
    """The points of a side that ran, one element each. `value` is the median of its compilations, NaN without
    one; theirs are `count` numbers of `values` from `start` on."""

    side: Side = field(repr=False)
    series: Ints
    experiment: Ints
    metric: Ints
    run: Ints
    environment: Ints
    value: Floats
    status: Ints
    start: Ints
    count: Ints
    values: Floats = field(repr=False)

    def points(self, indexes: Ints, place: int) -> list[Point]:
        columns = (self.series, self.experiment, self.metric, self.run, self.environment, self.value)
        found = (one[indexes].tolist() for one in (*columns, self.status, self.start, self.count))
        return [
            Point(
                place,
                series,
                experiment,
                metric,
                run,
                environment,
                self.values[start : start + count].tolist(),
                None if math.isnan(value) else value,
                STATUS_NAMES[status],
                self.side.ab_side,
            )
            for series, experiment, metric, run, environment, value, status, start, count in zip(
                *found, strict=True
            )
        ]

    def where(self, kept: Bools) -> Points:
        arrays = {one.name: getattr(self, one.name) for one in fields(self)}
        found = {name: array if name in {"side", "values"} else array[kept] for name, array in arrays.items()}
        return Points(**found)


def read(side: Side, metrics: Collection[int]) -> Points:
    """Return the points of these metrics: 1 statement."""
    rows = fetch_columns(
        _OF_RUNS if side.kind in {"run", "commit"} else _NEWEST,
        {
            "runs": int_array(side.runs),
            "newest": list(side.runs[:_WHOLE_RUNS]),
            "metrics": list(metrics),
            "ab_side": -1 if side.ab_side is None else side.ab_side,
            "start": side.start,
        },
    )
    series, experiment, metric, run, environment, _time, key, value, status = _newest(rows)
    group = np.cumsum(np.diff(series, prepend=series[:1]) != 0)
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    worst = np.maximum.reduceat(_SEVERITY[status], firsts) if firsts.size else firsts
    some_ok = np.maximum.reduceat(status == 0, firsts) if firsts.size else firsts.astype(bool)
    given = ~np.isnan(value)
    compilations, of_each = _medians(group[given] * _KEYS + key[given] + _KEYS // 2, value[given])
    groups, middle = _medians(compilations // _KEYS, of_each)
    medians = np.full(firsts.size, np.nan)
    medians[groups] = middle
    count = np.bincount(compilations // _KEYS, minlength=firsts.size)
    codes = np.array([_BY_SEVERITY[one] for one in worst.tolist()], np.int64)
    codes[some_ok & ~np.isnan(medians)] = 0
    found = Points(
        side,
        series[firsts],
        experiment[firsts],
        metric[firsts],
        run[firsts],
        environment[firsts],
        medians,
        codes,
        np.cumsum(count) - count,
        count,
        of_each,
    )
    return found.where(~np.isnan(medians) | ~_IS_NEVER_RAN[codes])


def _newest(rows: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the rows of the newest point of each series, sorted by series."""
    series, _experiment, _metric, run, environment, time, *_rest = rows
    if not series.size:
        return rows
    order = np.lexsort((environment, run, time, series))
    rows = [column[order] for column in rows]
    series, _experiment, _metric, run, environment, time, *_rest = rows
    last = np.flatnonzero(np.append(series[1:] != series[:-1], True))
    newest = np.repeat(last, np.diff(last, prepend=-1))
    kept = (time == time[newest]) & (run == run[newest]) & (environment == environment[newest])
    return rows if kept.all() else [column[kept] for column in rows]


def _medians(keys: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Return the distinct keys in order, and the median of the values of each."""
    if np.all(keys[1:] > keys[:-1]):
        return keys, values
    order = np.lexsort((values, keys))
    keys, values = keys[order], values[order]
    ends = np.flatnonzero(np.append(keys[1:] != keys[:-1], True)) + 1 if keys.size else keys
    starts = np.append(0, ends[:-1]) if keys.size else keys
    return keys[starts], (values[(starts + ends - 1) // 2] + values[(starts + ends) // 2]) / 2


def add_words(points: Iterable[Point]) -> None:
    """Add the outside system's code and the note of these points: 1 statement, none without points."""
    by_key = {(one.run_id, one.series_id, one.environment_id, one.ab_side): one for one in points}
    if not by_key:
        return
    runs, series, environments, ab_sides = zip(*by_key, strict=True)
    rows = fetch_tuples(
        """
        SELECT w.run_id, w.series_id, w.environment_id, w.side, max(m.code), max(m.note)
        FROM unnest(%(runs)s::int[], %(series)s::int[], %(environments)s::int[], %(ab_sides)s::int[])
            AS w(run_id, series_id, environment_id, side)
        JOIN hud_measurement m ON m.run_id = w.run_id AND m.series_id = w.series_id
            AND m.environment_id = w.environment_id AND (w.side IS NULL OR m.side = w.side)
        GROUP BY w.run_id, w.series_id, w.environment_id, w.side
        """,
        {
            "runs": list(runs),
            "series": list(series),
            "environments": list(environments),
            "ab_sides": list(ab_sides),
        },
    )
    for *key, code, note in rows:
        point = by_key[tuple(key)]
        point.code, point.note = code, note
