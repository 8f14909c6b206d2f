"""Results of a run: its points by importance, sorted, filtered and cut to a page.

A run has thousands of points of which a page shows some, so that only these become objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hud.models import (
    NEVER_RAN,
    STATUS_CODES,
    VERDICT_CODES,
    Environment,
    Experiment,
    Metric,
    Point,
    PointFields,
    Run,
    SidePoint,
)
from hud.pages.query_string import MAX_PAGE, NAMED, OPTIONS, named, number, one_of, words
from hud.points import expectations
from hud.points.read import main_metrics, with_levels
from hud.points.targets import RECORDED, Targets
from hud.sql import (
    Bools,
    Floats,
    Ints,
    by_id,
    fetch_columns,
    fetch_models,
    fetch_tuples,
    int_array,
    since_epoch_us,
)
from runner.schema.tables import rows

Key = tuple[int, int, int, int]  # series, environment, time in µs since 2000, side

# What a point shows, in the order of the page → icon, word of a filter, words of a sentence
LABELS = {kind: labels for kind, *labels in map(dict.values, rows(__file__, "kinds.csv"))}
KINDS = tuple(LABELS)
_CHOICES = ("suite", "mode", "dtype", "backend", "arch")
_SHARED = 3  # rows with the same warning, which is then said once
_SORTS = ("experiment", "metric", "value", "change", "noise")
_NO_PLACE = 99  # of what is none of its suite's main metrics
_QUIET_ROWS = 5  # unchanged points below those that are not


@dataclass(frozen=True)
class ResultFilters:
    """The table's part of the query string."""

    show: str = one_of(*KINDS)
    q: str = words()  # words that must all occur in experiment or metric; -word must not
    # '' by importance; else a column, with - the other way round
    sort: str = one_of(*_SORTS, *(f"-{name}" for name in _SORTS))
    page: int = number(MAX_PAGE, default=1)


# A regression that began in the run, or has its newest point in it: id, state, last good run and its commit,
# where both ends are kept, and the commit of the first run that moved.
Moved: TypeAlias = tuple[int, str, int | None, str, str]


@dataclass(frozen=True)
class KindCount:
    """How often a run shows something."""

    points: int
    experiments: int


@dataclass
class RunResults:
    """A page of a run's points; in an A/B run those of both sides."""

    filters: ResultFilters
    size: int  # points on a page
    total: int = 0  # points that match, or rows that stand for them
    kinds: list[str] = field(default_factory=list)  # of the rows, where they stand in groups
    others: dict[int, tuple[str, int]] = field(default_factory=dict)  # by series: kind, points without a row
    counts: dict[str, KindCount] = field(default_factory=dict)  # of all points, by kind
    experiments: int = 0  # of the whole run
    # kind, case, metric and change of the most certain change for the worse, or doubt
    worst: tuple[str, str, str, float] | None = None
    rows: list[PointFields] = field(default_factory=list)
    regressions: dict[int, Moved] = field(default_factory=dict)  # by series
    environments: list[Environment] = field(default_factory=list)

    @property
    def points(self) -> int:
        return sum(count.points for count in self.counts.values())

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


@dataclass(frozen=True)
class _Stored:
    """All points of a run, one element each: as much as sorting, filtering and counting need. A missing
    number is NaN, a missing verdict -1; `target` is the record's own for the arch."""

    series: Ints
    environment: Ints
    time_us: Ints  # since 2000
    side: Ints
    status: Ints
    verdict: Ints
    value: Floats
    change: Floats
    factor: Floats
    target: Floats
    experiment: Ints
    metric: Ints

    @classmethod
    def read(cls, run: Run) -> _Stored:
        """Return the points of a run, or of both sides of an A/B run: 1 statement."""
        judged = "0::int2 side, verdict, change, abs(factor) factor FROM hud_point"
        if run.is_ab:
            judged = "side, NULL::int2 verdict, NULL::real change, NULL::real factor FROM hud_sidepoint"
        numbers = [f"coalesce({name}, 'NaN')" for name in ("value", "change", "factor")]
        columns = ["p.series_id", "environment_id", "order_time", "side", "status"]
        columns += ["coalesce(verdict, -1::int2)", *numbers, RECORDED, "experiment_id", "metric_id"]
        points = f"""(SELECT series_id, environment_id, order_time, status, value, target, target_arch,
            {judged} WHERE run_id = %(run)s) p JOIN hud_series s ON s.id = p.series_id"""
        return cls(*fetch_columns(columns, points, {"run": run.pk}))

    def key(self, at: int) -> Key:
        return int(self.series[at]), int(self.environment[at]), int(self.time_us[at]), int(self.side[at])


def _key(point: PointFields) -> Key:
    """Return what `_Stored.key` returns of a point."""
    time_us, side = since_epoch_us(point.order_time), point.side if isinstance(point, SidePoint) else 0
    return point.series_id, point.environment_id, time_us, side


def read(run: Run, filters: ResultFilters, size: int, *, grouped: bool) -> RunResults:
    """Return a page of the results, in a fixed number of statements. `grouped`: without filters, what
    changed has a row for each experiment, under its kind, and a few unchanged points follow."""
    targets, stored = Targets.read(), _Stored.read(run)
    metrics = by_id(Metric, np.unique(stored.metric).tolist())
    listed = {} if run.is_ab else {_key(one): one for one in expectations.of_runs(run.stream_id, [run.pk])}
    kinds = _kinds(stored, listed, metrics, targets)
    of_experiments = np.unique(kinds << 32 | stored.experiment) >> 32
    points, experiments = (np.bincount(one, minlength=len(KINDS)).tolist() for one in (kinds, of_experiments))
    results = RunResults(
        filters,
        size,
        counts={kind: KindCount(points[at], experiments[at]) for at, kind in enumerate(KINDS) if points[at]},
        experiments=np.unique(stored.experiment).size,
    )
    matching = kinds == KINDS.index(filters.show) if filters.show else np.ones(kinds.size, bool)
    if filters.q:
        matching &= np.isin(stored.series, _named(filters.q, stored.series))
    order = _order(stored, kinds, metrics, filters.sort)
    order = order[matching[order]]
    grouped = grouped and not (run.is_ab or filters.show or filters.q or filters.sort)
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
    moved = np.isin(kinds, [KINDS.index("regressed"), KINDS.index("inconclusive")])
    doubts = np.flatnonzero(moved & ~np.isnan(stored.change))
    worst = doubts[np.lexsort((-stored.factor[doubts], kinds[doubts]))][:1].tolist()
    about = by_id(Experiment, [int(stored.experiment[at]) for at in (*shown, *worst)])
    for at in worst:
        case, title = about[int(stored.experiment[at])].case, metrics[int(stored.metric[at])].title
        results.worst = KINDS[kinds[at]], case, title, float(stored.change[at])
    if shown:
        _fill(run, results, [stored.key(at) for at in shown])
        for at, point in zip(shown, results.rows, strict=True):
            point.show(about[int(stored.experiment[at])], metrics[int(stored.metric[at])], targets)
            if same := listed.get(stored.key(at)):
                point.expectation, point.known_failure = same.expectation, same.known_failure
        if run.is_ab:
            expectations.add(run.stream_id, results.rows)
    return results


def _fill(run: Run, results: RunResults, keys: Sequence[Key]) -> None:
    """Add the points of a page, their regressions and environments."""
    params = {"run": run.pk, "series": int_array({series for series, *_rest in keys})}
    wanted = "WHERE run_id = %(run)s AND series_id = ANY(%(series)s::int[])"
    points: Sequence[PointFields]
    if run.is_ab:
        points = fetch_models(SidePoint, wanted, params)
    else:
        points = with_levels(fetch_models(Point, wanted, params))
    by_key = {_key(point): point for point in points}
    results.rows = [by_key[key] for key in keys]
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


def _kinds(
    stored: _Stored, listed: Mapping[Key, Point], metrics: Mapping[int, Metric], targets: Targets
) -> Ints:
    """Return of each point its place in KINDS. `listed` has what is expected of points that failed or are in
    lists."""
    unexpected, known = np.zeros((2, stored.series.size), bool)
    for at in range(stored.series.size) if listed else ():
        if point := listed.get(stored.key(at)):
            unexpected[at] = point.expectation in expectations.UNEXPECTED
            known[at] = bool(point.known_failure) and not unexpected[at]
    no_value, verdict, ok = np.isnan(stored.value), VERDICT_CODES, STATUS_CODES["ok"]
    never_ran = np.isin(stored.status, [STATUS_CODES[name] for name in NEVER_RAN])
    tests = {  # the first that holds counts
        "known": known,
        "regressed": stored.verdict == verdict["regressed"],
        "unexpected": unexpected,
        "not_run": no_value & never_ran,
        "failed": (stored.verdict == verdict["failed"]) | ((stored.status != ok) & ~never_ran),
        "missed": _missed(stored, metrics, targets),
        "inconclusive": stored.verdict == verdict["inconclusive"],
        "improved": stored.verdict == verdict["improved"],
        "new": stored.verdict == verdict["new"],
    }
    kinds: Ints = np.select(list(tests.values()), [KINDS.index(kind) for kind in tests], KINDS.index("rest"))
    return kinds


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


def _missed(stored: _Stored, metrics: Mapping[int, Metric], targets: Targets) -> Bools:
    """Return which points miss a target of their own device: 1 statement, none without targets."""
    aimed = np.isin(stored.metric, [pk for pk, metric in metrics.items() if targets.aims_at(metric)])
    rows = np.flatnonzero(~np.isnan(stored.value) & (aimed | ~np.isnan(stored.target)))
    of_rows = [metrics[pk] for pk in stored.metric[rows].tolist()]
    met = targets.met(stored.experiment[rows].tolist(), of_rows, stored.value[rows], stored.target[rows])
    missed = np.zeros(stored.series.size, bool)
    missed[rows] = np.array(met) == "missed"
    return missed


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


def _order(stored: _Stored, kinds: Ints, metrics: Mapping[int, Metric], sort: str) -> Ints:
    """Return all points in the order of a column or by importance, equal ones by experiment and metric: 1
    statement."""
    if not stored.series.size:
        return stored.series
    experiments, experiment = np.unique(stored.experiment, return_inverse=True)
    rows = fetch_tuples(
        'SELECT suite, "case" FROM hud_experiment WHERE id = ANY(%(ids)s::int[]) ORDER BY id',
        {"ids": int_array(experiments.tolist())},
    )
    (suites, suite), (_cases, case) = (
        np.unique(names, return_inverse=True) for names in zip(*rows, strict=True)
    )
    pks, metric = np.unique(stored.metric, return_inverse=True)
    titles = [metrics[pk].name for pk in pks.tolist()]
    mains = ({name: at for at, name in enumerate(main_metrics(suite))} for suite in suites.tolist())
    places = np.array([[main.get(name, _NO_PLACE) for name in titles] for main in mains])
    place, name = places[suite[experiment], metric], np.unique(titles, return_inverse=True)[1][metric]
    row, column = case[experiment] << 32 | experiment, place << 32 | name
    keys: tuple[NDArray[Any], ...] = {
        "": (kinds, -stored.factor, column, row),
        "experiment": (case[experiment], row, column),
        "metric": (place, column, row),
        "value": (stored.value, row, column),
        "change": (stored.change, row, column),
        "noise": (stored.factor, row, column),
    }[sort.removeprefix("-")]
    first, *others = keys
    return np.lexsort((stored.side, stored.time_us, *others[::-1], -first if sort.startswith("-") else first))
