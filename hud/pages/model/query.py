"""A model, a case of a suite, in all its experiments of a stream: their newest points and their trend."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from hud.judging.regressions.states import ACTIVE
from hud.models import NEVER_RAN, STATUS_CODES, Experiment, Metric, Point, Regression, Series, Stream
from hud.pages.backends_table import backend_place
from hud.pages.query_string import number, words
from hud.points import expectations
from hud.points import read as points
from hud.points.columns import SuiteColumn, columns_of, metric_names
from hud.points.targets import Targets
from hud.runs.branches import stored_names
from hud.sql import fetch_columns, fetch_models, from_epoch_us, int_array
from hud.tables.formatting import json_text


@dataclass(frozen=True)
class ModelFilters:
    metric: str = words()  # the key of a column, or one of its metrics
    days: int = number(365, default=28)  # of the trend


class Label(NamedTuple):
    """What tells an experiment from the model's others: the first two are its row, the others its column."""

    backend: str
    options: str  # those that differ
    arch: str
    kind: str  # mode and type

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.arch, self.kind, self.backend, self.options)))


@dataclass
class Combination:
    """An experiment with its newest point in the chosen column."""

    label: Label
    point: Point
    trend: list[tuple[datetime, float | None]] = field(default_factory=list)  # None where it failed
    regression: Regression | None = None  # of its series, while it waits for somebody


@dataclass
class ModelPage:
    suite: str
    case: str
    labels: dict[int, Label]  # by experiment, in the order of rows
    columns: list[tuple[SuiteColumn, list[Point]]]  # with the newest points
    chosen: SuiteColumn | None
    combinations: list[Combination]


def read(stream: Stream, experiments: Sequence[Experiment], filters: ModelFilters) -> ModelPage:
    """Return the page of a case, whose experiments these are, in a stream: 6 statements, 1 more for levels of
    another stream and for measured ceilings, 2 where the stream has lists or known failures."""
    known, suite = {one.pk: one for one in experiments}, experiments[0].suite
    series = fetch_models(
        Series,
        """JOIN hud_metric metric ON metric.id = one.metric_id
        WHERE one.experiment_id = ANY(%(experiments)s::int[]) AND one.stream_id = %(stream)s""",
        {"experiments": int_array(known), "stream": stream.pk},
        metric=Metric,
    )
    columns, _hidden = columns_of(suite, list({one.metric for one in series}))
    series = [one for one in series if one.metric.name in metric_names(columns)]
    shown = points.shown(series, known, points.latest([one.pk for one in series]), Targets.read())
    expectations.add(stream.pk, shown)
    by_metric: dict[int, dict[str, Point]] = {}
    for point in shown:
        by_metric.setdefault(point.experiment.pk, {})[point.metric.name] = point
    labels = _labels([known[pk] for pk in by_metric])
    cells = [(column, [column.cell(by_metric[pk]) for pk in labels]) for column in columns]
    measured = [(column, [point for point in held if point]) for column, held in cells]
    measured = [(column, held) for column, held in measured if held]
    asked = [cell for cell in measured if filters.metric in (cell[0].key, *cell[0].metrics)]
    chosen, held = next(iter([*asked, *measured]), (None, []))
    combinations = [Combination(labels[point.experiment.pk], point) for point in held]
    _add_trends(combinations, filters.days)
    return ModelPage(suite, experiments[0].case, labels, measured, chosen, combinations)


def _labels(experiments: Sequence[Experiment]) -> dict[int, Label]:
    """Return the labels of experiments, by backend and options."""
    names = sorted({name for one in experiments for name in one.knobs})
    varying = [name for name in names if len({json_text(one.knobs.get(name)) for one in experiments}) > 1]
    labels = {}
    for one in experiments:
        options = [f"{name}={json_text(one.knobs[name])}" for name in varying if name in one.knobs]
        labels[one.pk] = Label(
            one.backend or "backend unknown",
            ", ".join([*options, *(["dynamic shapes"] if one.dynamic else [])]),
            one.arch or f"{one.device} arch unknown".strip(),
            ", ".join(filter(None, (one.mode, one.dtype))),
        )

    def row(item: tuple[int, Label]) -> tuple[Any, ...]:
        return backend_place(item[1].backend), len(item[1].options), item[1]

    return dict(sorted(labels.items(), key=row))


def _add_trends(combinations: Sequence[Combination], days: int) -> None:
    """Add the values in the days before the newest one, without reruns and other branches, and what waits for
    somebody: 2 statements."""
    by_series = {one.point.series_id: one for one in combinations}
    newest = max((one.point.order_time for one in combinations), default=None)
    params = {
        "series": int_array(by_series),
        "active": list(ACTIVE),
        "since": newest and newest - timedelta(days=days),
        "branches": stored_names(),
        "never": [STATUS_CODES[name] for name in NEVER_RAN],
    }
    active = "WHERE series_id = ANY(%(series)s::int[]) AND state = ANY(%(active)s) ORDER BY since DESC"
    for regression in fetch_models(Regression, active, params):
        by_series[regression.series_id].regression = regression
    series, times_us, values = fetch_columns(
        ("series_id", "order_time", "coalesce(value, 'NaN')"),
        """(
            SELECT series_id, order_time, value FROM hud_point
            WHERE series_id = ANY(%(series)s::int[]) AND order_time > %(since)s AND NOT rerun
                AND branch = ANY(%(branches)s) AND (value IS NOT NULL OR status <> ALL(%(never)s))
        ) trend""",
        params,
    )
    spots = zip(times_us.tolist(), series.tolist(), values.tolist(), strict=True)
    for time_us, one, value in sorted(spots):
        by_series[one].trend.append((from_epoch_us(time_us), None if math.isnan(value) else value))
