"""Compare up to four sides: what moved, what may have another cause, what is within the noise.

Numbers stay in arrays until a page shows them: pairs of points are judged one by one only where they may have
moved, and rows are made of these and of what is shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hud.judging.regressions.counts import Counts as Waiting
from hud.judging.regressions.counts import Scope, count
from hud.judging.rules.thresholds import Thresholds
from hud.models import Metric, Stream
from hud.pages.compare import cohort as cohort_of
from hud.pages.compare import points as points_of
from hud.pages.compare.cohort import Cohort
from hud.pages.compare.environment import Fact, Places, differences, elsewhere, places_of
from hud.pages.compare.groups import COMPRESSION, Formulas, Group, Totals, groups, totals
from hud.pages.compare.judged import Judged, judge
from hud.pages.compare.pairs import Pairs, Rules, screen
from hud.pages.compare.points import Ints, Point, add_details
from hud.pages.compare.rows import Row, add_experiments, complete, count_kernels, row_of
from hud.pages.compare.sides import Side, resolve
from hud.pages.query_string import one_of, words
from hud.pages.suite.query import identities
from hud.points.read import metric_place
from hud.points.sides import BadSide
from hud.sql import fetch_models
from runner.schema.metrics import METRICS, role_of

COMPARED = sorted(name for name in METRICS if role_of(name, ()) == "headline")
VERDICTS = ("regressed", "improved", "failed", "inconclusive", "unchanged")


@dataclass(frozen=True)
class Filters:
    """What to show, beside the sides; '' means any."""

    metric: str = words()  # else of each experiment the most telling
    suite: str = words(60)
    verdict: str = one_of(*VERDICTS)
    formulas: Formulas = one_of("hud")
    arch: str = words(100)
    mode: str = words(40)
    dtype: str = words(40)

    @property
    def subject(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("arch", "mode", "dtype")}


@dataclass
class Counts:
    """The experiments of one candidate by what became of them."""

    verdicts: Counter[str]
    reasons: Counter[str]  # of the inconclusive ones
    matched: int
    only_base: int
    only_head: int

    def to_json(self) -> dict[str, Any]:
        verdicts = {name: self.verdicts.get(name, 0) for name in VERDICTS}
        cohort = {"matched": self.matched, "only_base": self.only_base, "only_head": self.only_head}
        return {**cohort, **verdicts, "reasons": dict(self.reasons)}


@dataclass
class ComparePage:
    """A comparison. Sections hold experiments of the cohort; `rows` makes rows of those that are shown."""

    stream: Stream  # in which dates, branches and commits are looked up
    sides: list[Side]
    filters: Filters
    movers: list[int]  # the most certain and largest first
    undecided: list[int]  # moved, but something else may be the cause
    quiet: list[int]  # within the noise, largest first
    apart: list[int]  # on one side only, or failing on both
    changes: list[tuple[str, float]]  # verdict and change for the first candidate, in the order of sections
    reach: float  # the largest change for any candidate, at most 100 %
    counts: list[Counts]  # for each candidate
    totals: list[Totals]  # likewise
    groups: list[list[Group]]  # likewise
    facts: list[Fact]  # of the environments
    metrics: list[Metric]  # that may be chosen
    suites: list[str]
    waiting: Waiting  # regressions between the baseline and the first candidate
    _comparison: _Comparison

    @property
    def heads(self) -> list[Side]:
        return self.sides[1:]

    @property
    def different(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.differs]

    @property
    def shown(self) -> list[int]:
        return [*self.movers, *self.undecided, *self.quiet, *self.apart]

    def rows(self, experiments: Sequence[int]) -> list[Row]:
        """Return the rows of these experiments of the cohort, to show them: 4 statements."""
        rows = self._comparison.rows(experiments)
        complete(rows)
        add_experiments(rows, self._comparison.places.environments)
        for row in rows:
            row.stream, row.with_arch = self.heads[0].stream, len(self._comparison.cohort.arches) > 1
        return rows

    def to_rows(self) -> list[dict[str, Any]]:
        rows = self._comparison.rows(self.shown)
        complete(rows)
        about = identities(row.pk for row in rows)
        return [line for row in rows for line in row.to_rows(self.heads, about[row.pk])]

    def to_json(self) -> dict[str, Any]:
        heads = [
            {
                **side.to_json(),
                **counts.to_json(),
                "totals": totals.to_json(),
                "aggregates": [group.to_json() for group in found],
            }
            for side, counts, totals, found in zip(
                self.heads, self.counts, self.totals, self.groups, strict=True
            )
        ]
        return {
            "stream": self.stream.name,
            "base": self.sides[0].to_json(),
            "head": self.heads[0].to_json(),
            "counts": {**self.counts[0].to_json(), **self.waiting.to_json()},
            "totals": heads[0]["totals"],
            "aggregates": heads[0]["aggregates"],
            "heads": heads,
            "environment": [fact.to_json() for fact in self.different],
        }


def read(base: str, heads: Sequence[str], filters: Filters, stream: Stream) -> ComparePage:
    """Return the comparison: 9 statements and two for each side, three for a night; `rows` reads the rest.
    Raise BadSide."""
    texts = [base, *heads]
    sides = [resolve(text, stream, filters.subject, is_base=place == 0) for place, text in enumerate(texts)]
    times = [side.newest.order_time for side in sides[:2]]
    names = [*COMPARED, COMPRESSION, filters.metric]
    stored = fetch_models(Metric, "WHERE name = ANY(%(names)s)", {"names": names})
    metrics = {metric.pk: metric for metric in stored}
    if filters.metric and filters.metric not in {metric.name for metric in metrics.values()}:
        raise BadSide(f"no metric is called {filters.metric[:80]!r}")
    found = [points_of.read(side, metrics) for side in sides]
    cohort = cohort_of.read(found, metrics, {**filters.subject, "suite": filters.suite})
    places = places_of(found)
    rules = Rules(Thresholds.read(), cohort)
    pairs = [screen(cohort, side, filters.metric, rules) for side in range(1, len(sides))]
    comparison = _Comparison(cohort, pairs, rules, places, filters.metric)
    comparison.judge_moved()
    cells = [comparison.verdicts(place) for place in range(len(heads))]
    movers, undecided, quiet, apart = (
        _of_verdict(section, cells, filters.verdict) for section in comparison.sections()
    )
    in_order = [*movers, *undecided, *quiet]
    changes = [comparison.changes(place, in_order) for place in range(len(heads))]
    others = [(side, elsewhere(cohort, side, places)) for side in range(1, len(sides))]
    compared = np.any([np.any(table >= 0, axis=0) for table in cohort.at], axis=0)
    return ComparePage(
        stream,
        sides,
        filters,
        movers,
        undecided,
        quiet,
        apart,
        changes[0],
        min(max((abs(change) for of_head in changes for _verdict, change in of_head), default=0.0), 1.0),
        [_counts(comparison, place, cells[place]) for place in range(len(heads))],
        [totals(cohort, side, elsewhere=away) for side, away in others],
        [groups(cohort, side, formulas=filters.formulas, elsewhere=away) for side, away in others],
        differences(found, places.environments, places.runs),
        sorted(
            (metric for metric, there in zip(cohort.columns, compared, strict=True) if there),
            key=lambda one: metric_place("", one),
        ),
        cohort.suites,
        count(Scope(stream, **filters.subject, base=times[0], head=times[1])),
        comparison,
    )


@dataclass
class _Comparison:
    """The compared pairs of all candidates. Rows are those that may have moved; `rows` makes the rest."""

    cohort: Cohort
    pairs: list[Pairs]  # of each candidate
    rules: Rules
    places: Places
    metric: str
    moved: dict[int, Row] = field(default_factory=dict)

    def judge_moved(self) -> None:
        """Judge what may have moved, in the light of its cards and kernels: 2 statements."""
        moved = sorted({one for pairs in self.pairs for one in pairs.experiment[~pairs.quiet].tolist()})
        to_judge = [self._to_judge(moved, place) for place in range(len(self.pairs))]
        add_details(
            point for of_head in to_judge for _one, _column, *ends, _known in of_head for point in ends
        )
        judged: dict[int, list[list[Judged]]] = {one: [[] for _head in to_judge] for one in moved}
        for place, of_head in enumerate(to_judge):
            for one, column, base, head, (noise, points) in of_head:
                measured = self.places.of(base), self.places.of(head)
                metric, rule = self.cohort.columns[column], self.rules.of(one, column)
                pair = judge(metric, rule, (base, head), measured, noise=noise, points=points)
                judged[one][place].append(pair)
        kernels = count_kernels(judged.values())
        for one, of_heads in judged.items():
            self.moved[one] = row_of(int(self.cohort.ids[one]), of_heads, kernels)

    def _to_judge(
        self, experiments: Sequence[int], place: int
    ) -> list[tuple[int, int, Point, Point, tuple[float, int]]]:
        """Return of each experiment the pair to show if none moved, and those that may have moved, each as
        experiment, metric's column, both points, and the noise with its number of points."""
        pairs = self.pairs[place]
        is_shown = pairs.shown[pairs.experiment] == np.arange(pairs.experiment.size)
        at = np.flatnonzero(np.isin(pairs.experiment, experiments) & (is_shown | ~pairs.quiet))
        at = at[np.lexsort((~is_shown[at], pairs.experiment[at]))]
        known = zip(pairs.noise[at].tolist(), pairs.points[at].tolist(), strict=True)
        return list(zip(*self._points(at, place), known, strict=True))

    def _points(self, at: Ints, place: int) -> tuple[list[int], list[int], list[Point], list[Point]]:
        """Return experiment, metric's column and both points of these pairs."""
        pairs, cohort = self.pairs[place], self.cohort
        one, column = pairs.experiment[at], pairs.column[at]
        base, head = (
            cohort.sides[side].points(cohort.at[side][one, column], side) for side in (0, place + 1)
        )
        return one.tolist(), column.tolist(), base, head

    def rows(self, experiments: Sequence[int]) -> list[Row]:
        others = [one for one in experiments if one not in self.moved]
        cells = [self._quiet(others, place) for place in range(len(self.pairs))]
        rows = {
            one: Row(int(self.cohort.ids[one]), list(of_heads))
            for one, of_heads in zip(others, zip(*cells, strict=True), strict=True)
        }
        for one, row in rows.items():
            if row.best is None:
                self._add_alone(one, row)
        return [self.moved.get(one) or rows[one] for one in experiments]

    def _quiet(self, experiments: Sequence[int], place: int) -> list[Judged | None]:
        """Return what each experiment shows where nothing moved, None without a pair."""
        pairs = self.pairs[place]
        shown = pairs.shown[experiments]
        at = shown[shown >= 0]
        _experiments, columns, base, head = self._points(at, place)
        numbers = (
            [None if math.isnan(number) else number for number in of_pairs[at].tolist()]
            for of_pairs in (pairs.change, pairs.noise, pairs.factor)
        )
        reasons = ["both_fail" if fails else "" for fails in pairs.both_fail[at].tolist()]
        metrics = [self.cohort.columns[column] for column in columns]
        found = iter(
            Judged(metric, before, after, "unchanged", *rest)
            for metric, before, after, *rest in zip(metrics, base, head, reasons, *numbers, strict=True)
        )
        return [next(found) if there else None for there in (shown >= 0).tolist()]

    def _add_alone(self, one: int, row: Row) -> None:
        cohort = self.cohort
        there = [
            (int(cohort.column_order[one, column]), side, column)
            for side, table in enumerate(cohort.at)
            for column in np.flatnonzero(table[one] >= 0).tolist()
            if self.metric in ("", cohort.columns[column].name)
        ]
        _order, side, column = min(there)
        (row.alone,) = cohort.sides[side].points(cohort.at[side][[one], column], side)
        row.alone_metric = cohort.columns[column]

    def sections(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return movers, undecided, quiet ones and those that are not compared, the most certain and largest
        first."""
        columns = [self.metric in ("", one.name) for one in self.cohort.columns]
        section = np.where(
            np.any([(at[:, columns] >= 0).any(axis=1) for at in self.cohort.at], axis=0), 3, -1
        )
        score = np.full(self.cohort.ids.size, -1.0)
        for pairs in self.pairs:
            judged = np.flatnonzero(pairs.first >= 0)
            judged = judged[pairs.score[pairs.shown[judged]] > score[judged]]
            shown = pairs.shown[judged]
            score[judged] = pairs.score[shown]
            section[judged] = np.where(pairs.both_fail[shown], 3, 2)
        for one, row in self.moved.items():
            score[one] = row.score
            if best := row.best:
                fails = 3 if best.reason == "both_fail" else 2
                section[one] = 0 if best.moved else 1 if best.undecided else fails
        score[section == 3] = 0.0
        order = np.lexsort((self.cohort.names, -score))
        found = [order[section[order] == number].tolist() for number in range(4)]
        return found[0], found[1], found[2], found[3]

    def verdicts(self, place: int) -> dict[int, str]:
        """Return the verdict of each experiment for a candidate; `both_fail` where neither side is ok."""
        pairs = self.pairs[place]
        there = np.flatnonzero(pairs.first >= 0)
        fails = pairs.both_fail[pairs.first[there]].tolist()
        found = {
            one: "both_fail" if fail else "unchanged" for one, fail in zip(there.tolist(), fails, strict=True)
        }
        for one, row in self.moved.items():
            if cell := row.cells[place]:
                found[one] = "both_fail" if cell.reason == "both_fail" else cell.verdict
        return found

    def changes(self, place: int, experiments: Sequence[int]) -> list[tuple[str, float]]:
        """Return verdict and change of these experiments for a candidate, where there is a change."""
        pairs, found = self.pairs[place], []
        change = np.append(pairs.change, np.nan)[pairs.shown].tolist()
        for one in experiments:
            if row := self.moved.get(one):
                if (cell := row.cells[place]) and cell.change is not None:
                    found.append((cell.verdict, cell.change))
            elif math.isfinite(change[one]):
                found.append(("unchanged", change[one]))
        return found


def _of_verdict(section: list[int], cells: Sequence[Mapping[int, str]], verdict: str) -> list[int]:
    if not verdict:
        return section
    wanted = {verdict, "both_fail"} if verdict == "unchanged" else {verdict}
    return [one for one in section if any(of_head.get(one) in wanted for of_head in cells)]


def _counts(comparison: _Comparison, place: int, verdicts: Mapping[int, str]) -> Counts:
    base, head = comparison.cohort.has(0), comparison.cohort.has(place + 1)
    cells = [cell for row in comparison.moved.values() if (cell := row.cells[place])]
    counted = Counter(verdicts.values())
    del counted["both_fail"]
    return Counts(
        counted,
        Counter(cell.reason for cell in cells if cell.undecided),
        int(np.sum(base & head)),
        int(np.sum(base & ~head)),
        int(np.sum(head & ~base)),
    )
