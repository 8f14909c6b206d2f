"""Results of a run: its points by importance, sorted, filtered and cut to a page.

A run has thousands of points of which a page shows some, so that only these become objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from hud.models import Environment, Experiment, Metric, Point, PointFields, Run, SidePoint
from hud.pages.query_string import MAX_PAGE, NAMED, OPTIONS, named, number, one_of, words
from hud.points import expectations, summaries
from hud.points.read import with_levels
from hud.points.summaries import KINDS, LABELS, SORTS, Key, RunPoints, Summary, key_of
from hud.points.targets import Targets
from hud.sql import Ints, by_id, fetch_models, fetch_tuples, int_array

_CHOICES = ("suite", "mode", "dtype", "backend", "arch")
_SHARED = 3  # rows with the same warning, which is then said once
_OF_SERIES = {
    name: f"(SELECT {name} FROM hud_series WHERE id = own.series_id)"  # noqa: S608  # nosec B608
    for name in ("experiment_id", "metric_id")
}
_QUIET_ROWS = 5  # unchanged points below those that are not


@dataclass(frozen=True)
class ResultFilters:
    show: str = one_of(*KINDS)
    q: str = words()  # words that must all occur in experiment or metric; -word must not
    # '' by importance; else a column, with - the other way round
    sort: str = one_of(*SORTS, *(f"-{name}" for name in SORTS))
    page: int = number(MAX_PAGE, default=1)


# A regression that began in the run, or has its newest point in it: id, state, last good run and its commit,
# where both ends are kept, and the commit of the first run that moved.
Moved: TypeAlias = tuple[int, str, int | None, str, str]


@dataclass
class RunResults(Summary):
    """A page of a run's points; in an A/B run those of both sides."""

    filters: ResultFilters
    size: int  # points on a page
    total: int = 0  # points that match, or rows that stand for them
    kinds: list[str] = field(default_factory=list)  # of the rows, where they stand in groups
    others: dict[int, tuple[str, int]] = field(default_factory=dict)  # by series: kind, points without a row
    rows: list[PointFields] = field(default_factory=list)
    regressions: dict[int, Moved] = field(default_factory=dict)  # by series
    environments: list[Environment] = field(default_factory=list)

    @property
    def is_large(self) -> bool:
        return self.points > summaries.LARGE

    @property
    def suite_rows(self) -> list[tuple[str, list[int]]]:
        """Return each suite with how many of its points show what `counts` has."""
        return [
            (suite, [counts.get(kind, 0) for kind in self.counts])
            for suite, counts in sorted(self.suites.items())
        ]

    @property
    def first(self) -> int:
        return (self.filters.page - 1) * self.size + 1

    @property
    def last(self) -> int:
        return min(self.first + self.size - 1, self.total)

    @property
    def next_page(self) -> int | None:
        return self.filters.page + 1 if self.last < self.total else None

    @property
    def findings(self) -> list[tuple[int, str]]:
        """Return how many experiments have a result that the run's sentence names, with its words."""
        named = [(count.experiments, LABELS[kind][2]) for kind, count in self.counts.items()]
        return [(count, words) for count, words in named if count and words]

    @property
    def is_first(self) -> bool:
        return {point.verdict for point in self.rows if point.verdict} == {"new"}

    @property
    def judged(self) -> bool:
        return all(point.verdict for point in self.rows)

    @cached_property
    def varying(self) -> list[str]:
        """Return in which of these the shown experiments differ."""
        return [name for name in _CHOICES if len({getattr(row.experiment, name) for row in self.rows}) > 1]

    @property
    def constant(self) -> list[str]:
        """Return what all shown experiments have in common."""
        shown = self.rows[0].experiment
        return [str(getattr(shown, name)) for name in _CHOICES if name not in self.varying]

    @cached_property
    def notes(self) -> dict[str, tuple[int, int]]:
        """Return the warnings that several of the shown rows share: the number of each, and how many rows."""
        counted = Counter(point.warning for point in self.rows if point.warning)
        shared = [(text, count) for text, count in counted.most_common() if count >= _SHARED]
        return {text: (number, count) for number, (text, count) in enumerate(shared, 1)}


def read(run: Run, filters: ResultFilters, size: int, *, grouped: bool) -> RunResults:
    """Return a page of the results, in a fixed number of statements. `grouped`: without filters, what
    changed has a row for each experiment, under its kind, and a few unchanged points follow; not in a large
    run, of which nothing is read but what the judge keeps and the page shows."""
    targets = Targets.read()
    if not (filters.q or filters.sort) and (summary := summaries.kept(run)):
        before, total = summary.place_of(filters.show)
        results = RunResults(**vars(summary), filters=filters, size=size, total=total)
        most = min(size, total - results.first + 1)
        _fill(run, results, summaries.keys_of_kept(run, before + results.first - 1, most), targets)
        return results
    points = RunPoints(run, targets)
    stored, kinds = points.stored, points.kinds
    results = RunResults(**vars(points.summary()), filters=filters, size=size)
    matching = kinds == KINDS.index(filters.show) if filters.show else np.ones(kinds.size, bool)
    if filters.q:
        matching &= np.isin(stored.series, _named(filters.q, stored.series))
    order = points.order(filters.sort)
    order = order[matching[order]]
    grouped = grouped and not (run.is_ab or results.is_large or filters.show or filters.q or filters.sort)
    if grouped:
        order, others = _leading(kinds[order], stored.experiment[order], order)
        results.others = {
            int(stored.series[at]): (KINDS[kinds[at]], count)
            for at, count in zip(order.tolist(), others.tolist(), strict=True)
            if count
        }
    results.total = order.size
    shown = order[results.first - 1 :][:size].tolist()
    results.kinds = [KINDS[kinds[at]] for at in shown] if grouped else []
    _fill(run, results, [stored.key(at) for at in shown], targets)
    return results


def _fill(run: Run, results: RunResults, keys: Sequence[Key], targets: Targets) -> None:
    """Add the points of a page with what they show, their regressions and environments."""
    if not keys:
        return
    params = {"run": run.pk, "series": int_array({series for series, *_rest in keys})}
    wanted = "WHERE run_id = %(run)s AND series_id = ANY(%(series)s::int[])"
    points: Sequence[PointFields]
    if run.is_ab:
        points = fetch_models(SidePoint, wanted, params, computed=_OF_SERIES)
    else:
        points = with_levels(fetch_models(Point, wanted, params, computed=_OF_SERIES))
    by_key = {key_of(point): point for point in points}
    results.rows = [by_key[key] for key in keys if key in by_key]
    experiments, metrics = (
        by_id(kind, (getattr(point, name) for point in results.rows))
        for kind, name in ((Experiment, "experiment_id"), (Metric, "metric_id"))
    )
    for point in results.rows:
        about: Any = point
        about.show(experiments[about.experiment_id], metrics[about.metric_id], targets)
    expectations.add(run.stream_id, results.rows)
    moved = fetch_tuples(
        """
        SELECT own.series_id, own.id, own.state, good.id last_good_run, coalesce(good.commit, '') base,
            coalesce(first.commit, '') head
        FROM hud_regression own
        LEFT JOIN hud_run first ON first.id = own.first_run_id
        LEFT JOIN hud_run good ON good.id = own.last_good_run_id AND first.id IS NOT NULL
        WHERE (own.first_run_id = %(run)s OR own.latest_run_id = %(run)s)
            AND own.series_id = ANY(%(series)s::int[])
        ORDER BY own.id
        """,
        params,
    )
    results.regressions = {row[0]: row[1:] for row in moved}
    environments = by_id(Environment, [environment for _series, environment, *_rest in keys])
    results.environments = [environments[pk] for pk in sorted(environments)]


def _leading(kinds: Ints, experiments: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Return of points in their order those with a row, and how many others each stands for."""
    together = kinds << 32 | experiments
    _pairs, first, counts = np.unique(together, return_index=True, return_counts=True)
    others = np.zeros(order.size, np.int64)
    others[first] = counts - 1
    new, quiet = (kinds == KINDS.index(kind) for kind in ("new", "rest"))
    others[new | quiet] = 0
    rows = quiet if quiet.all() else quiet & (np.cumsum(quiet) <= _QUIET_ROWS)
    rows[first] |= ~quiet[first]
    rows |= new
    return order[rows], others[rows]


def _named(text: str, series: Ints) -> list[int]:
    """Return the series in whose experiment or metric all words occur, and no -word does: 1 statement."""
    rows = fetch_tuples(
        f"""
        SELECT id FROM (
            SELECT s.id, concat_ws(' ', e.suite, e."case", {OPTIONS}, e.mode, e.dtype, e.backend, e.arch,
                m.name, m.title) words
            FROM hud_series s JOIN hud_experiment e ON e.id = s.experiment_id
            JOIN hud_metric m ON m.id = s.metric_id WHERE s.id = ANY(%(series)s::int[])
        ) one WHERE {NAMED}
        """,  # noqa: S608 — a constant  # nosec B608
        {"series": int_array(np.unique(series).tolist()), **named(text)},
    )
    return [pk for (pk,) in rows]
