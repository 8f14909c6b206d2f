"""A model, a case of a suite, in all its experiments of a stream: their newest points and their trend."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import NamedTuple

import numpy as np
from django import forms

from hud.judging.regressions.states import ACTIVE
from hud.models import NEVER_RAN, STATUS_CODES, Experiment, Metric, Point, Regression, Series, Stream
from hud.pages.backends_table import backend_place
from hud.pages.query_string import parameter, words
from hud.points import expectations
from hud.points import read as points
from hud.points.columns import SuiteColumn, columns_of, metric_names
from hud.points.targets import Targets
from hud.runs.branches import stored_names
from hud.sql import fetch_columns, fetch_models, int_array
from hud.tables.formatting import json_text
from runner.schema.statistics import median

WINDOWS = (7, 28, 90)  # days of the trend
_DAYS = forms.TypedChoiceField(
    required=False, coerce=int, empty_value=None, choices=[(days, days) for days in WINDOWS]
)


@dataclass(frozen=True)
class ModelFilters:
    metric: str = words()  # the key of a column, or one of its metrics
    days: int = parameter(_DAYS, 28)


class Setup(NamedTuple):
    """A row of the grid: what was compiled, and how."""

    backend: str
    dynamic: bool
    options: str  # those in which the model's experiments differ


class Place(NamedTuple):
    """A column of the grid: where and on what it ran."""

    arch: str
    device: str
    mode: str
    dtype: str

    @property
    def name(self) -> str:
        return self.arch or f"{self.device}, arch unknown".removeprefix(", ")

    @property
    def kind(self) -> str:
        return ", ".join(filter(None, (self.mode, self.dtype)))


@dataclass
class Combination:
    """An experiment with its newest point in each column of results that has one."""

    experiment: Experiment
    setup: Setup
    place: Place
    points: dict[str, Point]  # by the column's key
    shown: Point | None = None  # of the chosen column
    trend: list[tuple[int, float | None]] = field(default_factory=list)  # time in µs; None where it failed
    regression: Regression | None = None  # of the shown point's series, while it waits for somebody

    @property
    def verdict(self) -> str:
        return self.shown.verdict if self.shown else ""

    @property
    def name(self) -> str:
        return ", ".join(
            filter(None, (self.place.name, self.place.kind, self.setup.backend, self.setup.options))
        )


@dataclass(frozen=True)
class Ranking:
    """The combinations in which one metric of a column was measured, that with the worst value first."""

    column: SuiteColumn
    ranked: list[Combination]
    moved: Combination | None  # that left its level farthest for the worse

    @property
    def points(self) -> list[Point]:
        return [one.points[self.column.key] for one in self.ranked]

    @property
    def values(self) -> list[float]:
        return [point.value or 0.0 for point in self.points]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def change(self) -> float | None:
        return self.moved and self.moved.points[self.column.key].change


@dataclass
class ModelPage:
    stream: Stream
    suite: str
    case: str
    columns: list[SuiteColumn]
    chosen: SuiteColumn | None
    combinations: list[Combination]

    @cached_property
    def grid(self) -> dict[tuple[Setup, Place], Combination]:
        return {(one.setup, one.place): one for one in self.combinations if one.shown}

    @cached_property
    def setups(self) -> list[Setup]:
        """Return the rows, by backend."""
        return sorted(
            {setup for setup, _place in self.grid},
            key=lambda one: (backend_place(one.backend), one.dynamic, len(one.options), one.options),
        )

    @cached_property
    def places(self) -> list[Place]:
        return sorted({place for _setup, place in self.grid})

    @property
    def points(self) -> list[Point]:
        return [point for one in self.combinations for point in one.points.values()]

    def with_verdict(self, word: str, key: str = "") -> list[Combination]:
        """Return the combinations of which the shown point, or that of a column, has a verdict, the largest
        change first."""
        key = key or (self.chosen.key if self.chosen else "")
        moved = [one for one in self.combinations if key in one.points and one.points[key].verdict == word]
        return sorted(moved, key=lambda one: -abs(one.points[key].change or 0.0))

    def failing(self, *, known: bool) -> int:
        """Return how many shown points failed, those that are no news or the others."""
        shown = [one.shown for one in self.combinations if one.shown]
        return sum(
            point.status_code in expectations.FAILING and bool(point.known_failure) is known
            for point in shown
        )

    @cached_property
    def rankings(self) -> list[Ranking]:
        """Return each column in which several values of one metric may decide, and are not the same."""
        rankings = []
        for column in self.columns:
            held = [(one.points[column.key], one) for one in self.combinations if column.key in one.points]
            held = [(point, one) for point, one in held if point.value is not None and not point.quality]
            metrics = [point.metric for point, _one in held]
            metric = max(metrics, key=metrics.count, default=None)
            if metric is None or metric.direction == "none":
                continue
            ranked = [(point.value or 0.0, one) for point, one in held if point.metric == metric]
            ranked.sort(key=lambda pair: pair[0], reverse=metric.direction == "down")
            if ranked[0][0] != ranked[-1][0]:
                moved = next(iter(self.with_verdict("regressed", column.key)), None)
                rankings.append(Ranking(column, [one for _value, one in ranked], moved))
        return rankings


def experiments_of(suite: str, case: str) -> list[Experiment]:
    """Return the experiments of a case, of all streams: 1 statement."""
    return fetch_models(
        Experiment, 'WHERE suite = %(suite)s AND "case" = %(case)s', {"suite": suite, "case": case}
    )


def read(stream: Stream, experiments: Sequence[Experiment], filters: ModelFilters) -> ModelPage:
    """Return the page of a case in a stream: 6 statements, 1 more for levels of another stream and for
    measured ceilings, 2 where the stream has lists or known failures."""
    known = {one.pk: one for one in experiments}
    suite, case = experiments[0].suite, experiments[0].case
    of_case = "WHERE one.experiment_id = ANY(%(experiments)s::int[]) AND one.stream_id = %(stream)s"
    params = {"experiments": int_array(known), "stream": stream.pk}
    series = fetch_models(
        Series, f"JOIN hud_metric metric ON metric.id = one.metric_id {of_case}", params, metric=Metric
    )
    columns, _hidden = columns_of(suite, list({one.metric_id: one.metric for one in series}.values()))
    names = metric_names(columns)
    series = [one for one in series if one.metric.name in names]
    newest = points.latest([one.pk for one in series])
    shown = points.shown(series, known, newest, Targets.read())
    expectations.add(stream.pk, shown)
    of_experiment: dict[int, dict[str, Point]] = {}
    for point in shown:
        of_experiment.setdefault(point.experiment.pk, {})[point.metric.name] = point
    varying = _varying([known[pk] for pk in of_experiment])
    combinations = [_combination(known[pk], columns, own, varying) for pk, own in of_experiment.items()]
    columns = [column for column in columns if any(column.key in one.points for one in combinations)]
    asked = (column for column in columns if filters.metric in (column.key, *column.metrics))
    page = ModelPage(stream, suite, case, columns, next(asked, columns[0] if columns else None), combinations)
    for one in combinations:
        one.shown = one.points.get(page.chosen.key) if page.chosen else None
    _add_trends(page, filters.days)
    return page


def _varying(experiments: Sequence[Experiment]) -> list[str]:
    """Return the options in which experiments differ."""
    names = sorted({name for one in experiments for name in one.knobs})
    return [name for name in names if len({json_text(one.knobs.get(name)) for one in experiments}) > 1]


def _combination(
    one: Experiment, columns: Sequence[SuiteColumn], of_metrics: dict[str, Point], varying: Sequence[str]
) -> Combination:
    options = ", ".join(f"{name}={json_text(one.knobs[name])}" for name in varying if name in one.knobs)
    cells = {column.key: point for column in columns if (point := column.cell(of_metrics))}
    place = Place(one.arch, one.device, one.mode, one.dtype)
    return Combination(one, Setup(one.backend, one.dynamic, options), place, cells)


def _add_trends(page: ModelPage, days: int) -> None:
    """Add the values of the shown series in the days before their newest, without reruns and other branches,
    and what waits of them: 2 statements."""
    by_series = {one.shown.series_id: one for one in page.combinations if one.shown}
    newest = max((one.shown.order_time for one in by_series.values() if one.shown), default=None)
    active = "WHERE series_id = ANY(%(series)s::int[]) AND state = ANY(%(active)s) ORDER BY since"
    params = {"series": int_array(by_series), "active": list(ACTIVE)}
    for regression in fetch_models(Regression, active, params):
        by_series[regression.series_id].regression = regression
    series, times_us, values = fetch_columns(
        ("series_id", "order_time", "coalesce(value, 'NaN')"),
        """(
            SELECT series_id, order_time, value FROM hud_point
            WHERE series_id = ANY(%(series)s::int[]) AND order_time > %(since)s AND NOT rerun
                AND branch = ANY(%(branches)s) AND (value IS NOT NULL OR status <> ALL(%(never)s))
        ) trend""",
        {
            **params,
            "since": newest and newest - timedelta(days=days),
            "branches": stored_names(),
            "never": [STATUS_CODES[name] for name in NEVER_RAN],
        },
    )
    for place in np.lexsort((times_us, series)).tolist():
        value = float(values[place])
        trend = by_series[int(series[place])].trend
        trend.append((int(times_us[place]), None if math.isnan(value) else value))
