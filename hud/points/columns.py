"""Columns by meaning: our own metrics and those of other systems that tell the same share one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

from hud.models import Metric, Point
from hud.points.read import main_metrics, metric_place

MOST = 9


@dataclass(frozen=True)
class SuiteColumn:
    """A column of results. `metrics` are its metrics, the best first, each with what its cells are marked
    with: '' for the usual one."""

    key: str
    title: str
    metrics: Mapping[str, str]
    title_more: str = ""  # in the tooltip

    def cell(self, points: Mapping[str, Point]) -> Point | None:
        """Return the best metric that has a number, else the best that has a status."""
        there = [points[name] for name in self.metrics if name in points]
        return next((reading for reading in there if reading.value is not None), there[0] if there else None)


_FILE = Path(__file__).with_suffix(".toml")
COLUMNS = tuple(SuiteColumn(key, **about) for key, about in tomllib.loads(_FILE.read_text("utf-8")).items())
_PLACES = {
    name: (index, rank) for index, column in enumerate(COLUMNS) for rank, name in enumerate(column.metrics)
}


def place_of(metric: str) -> tuple[int, int]:
    """Return a sort key: the column of a metric and its place in it; others come last."""
    return _PLACES.get(metric, (len(COLUMNS), 0))


def key_of(metric: str) -> str:
    """Return the key of a metric's column; of others their name."""
    return COLUMNS[_PLACES[metric][0]].key if metric in _PLACES else metric


def columns_of(suite: str, metrics: Sequence[Metric]) -> tuple[list[SuiteColumn], int]:
    """Return the columns for these metrics of a suite, and how many metrics get none."""
    names = {metric.name for metric in metrics}
    by_meaning = [column for column in COLUMNS if names & column.metrics.keys()]
    main = main_metrics(suite)
    more = [
        SuiteColumn(metric.name, metric.title, {metric.name: ""})
        for metric in sorted(metrics, key=lambda metric: metric_place(suite, metric))
        if not by_meaning  # a suite of others: its first metrics
        or (metric.name not in _PLACES and metric.name in main)
    ]
    # the column of the suite's first metric first
    first = next(iter(main), "")
    columns = sorted([*by_meaning, *more], key=lambda column: first not in column.metrics)[:MOST]
    shown = {name for column in columns for name in column.metrics}
    return columns, len(names - shown)


def metric_names(columns: Iterable[SuiteColumn]) -> set[str]:
    return {name for column in columns for name in column.metrics}
