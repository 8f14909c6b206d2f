"""Compare up to four sides: what moved, what may have another cause, what is within the noise.

Numbers stay in arrays until a page shows them: pairs of points are judged one by one only where they may have
moved, and rows are made of these and of what is shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.db.models import Func, IntegerField

from hud.judging.rules.thresholds import Thresholds
from hud.models import Compilation, Metric
from hud.pages.compare import cohort as cohort_of
from hud.pages.compare import points as points_of
from hud.pages.compare.cohort import Cohort
from hud.pages.compare.environment import Fact, Places, differences, elsewhere, places_of
from hud.pages.compare.groups import COMPRESSION, Formulas, Group, groups
from hud.pages.compare.judged import Judged, Known, by_draw, judge
from hud.pages.compare.pairs import Pairs, Rules, screen
from hud.pages.compare.rows import Row, complete
from hud.pages.compare.sides import BadSide, Side, resolve
from hud.pages.sql import fetch_tuples
from hud.pages.values import metric_place
from runner.schema.metrics import METRICS, role_of

COMPARED = sorted(name for name in METRICS if role_of(name, ()) == "headline")
VERDICTS = ("regressed", "improved", "failed", "inconclusive", "unchanged")
_FEW_KERNELS = 8  # up to as many a variant comes again, as the judge has it
_BREAKS = "graph_breaks"


@dataclass(frozen=True)
class Filters:
    """What to show, beside the sides; '' means any."""

    metric: str = ""  # else of each experiment the most telling
    suite: str = ""
    verdict: str = ""
    formulas: Formulas = ""


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

    sides: list[Side]
    filters: Filters
    movers: list[int]  # the most certain and largest first
    undecided: list[int]  # moved, but something else may be the cause
    quiet: list[int]  # within the noise, largest first
    apart: list[int]  # on one side only, or failing on both
    changes: list[tuple[str, float]]  # verdict and change for the first candidate, in the order of sections
    reach: float  # the largest change for any candidate, at most 100 %
    counts: list[Counts]  # for each candidate
    groups: list[list[Group]]  # likewise
    facts: list[Fact]  # of the environments
    metrics: list[Metric]  # that may be chosen
    suites: list[str]
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

    def rows(self, experiments: Iterable[int]) -> dict[int, Row]:
        """Return the rows of these experiments of the cohort: 4 statements at most."""
        rows = {one: self._comparison.row(one) for one in experiments}
        complete(list(rows.values()), self._comparison.places.environments)
        return rows

    def to_rows(self) -> list[dict[str, Any]]:
        return [line for row in self.rows(self.shown).values() for line in row.to_rows(self.heads)]

    def to_json(self) -> dict[str, Any]:
        return {
            "base": self.sides[0].to_json(),
            "head": self.heads[0].to_json(),
            "counts": self.counts[0].to_json(),
            "aggregates": [group.to_json() for group in self.groups[0]],
            "heads": [
                {**side.to_json(), **counts.to_json(), "aggregates": [group.to_json() for group in found]}
                for side, counts, found in zip(self.heads, self.counts, self.groups, strict=True)
            ],
            "environment": [fact.to_json() for fact in self.different],
        }


def read(base: str, heads: Sequence[str], filters: Filters) -> ComparePage:
    """Return the comparison: 7 statements, two for each side and one for each candidate; `rows` reads the
    rest. Raise BadSide."""
    sides = [resolve(base, is_base=True), *(resolve(text, is_base=False) for text in heads)]
    names = {*COMPARED, COMPRESSION, filters.metric}
    metrics = {metric.pk: metric for metric in Metric.objects.filter(name__in=names)}
    if filters.metric and filters.metric not in {metric.name for metric in metrics.values()}:
        raise BadSide(f"no metric is called {filters.metric[:80]!r}")
    found = [points_of.read(side, metrics) for side in sides]
    cohort = cohort_of.read(found, metrics, filters.suite)
    places = places_of(found)
    rules = Rules(Thresholds.read(), cohort)
    pairs = [
        screen(cohort, side, filters.metric, rules, places.environments) for side in range(1, len(sides))
    ]
    comparison = _Comparison(cohort, pairs, rules, places, filters.metric)
    comparison.judge_moved()
    cells = [comparison.verdicts(place) for place in range(len(heads))]
    movers, undecided, quiet, apart = (
        _of_verdict(section, cells, filters.verdict) for section in comparison.sections()
    )
    in_order = [*movers, *undecided, *quiet]
    changes = [comparison.changes(place, in_order) for place in range(len(heads))]
    compared = np.any([np.any(table >= 0, axis=0) for table in cohort.at], axis=0)
    return ComparePage(
        sides,
        filters,
        movers,
        undecided,
        quiet,
        apart,
        changes[0],
        min(max((abs(change) for of_head in changes for _verdict, change in of_head), default=0.0), 1.0),
        [_counts(comparison, place, cells[place]) for place in range(len(heads))],
        [
            groups(cohort, side, formulas=filters.formulas, elsewhere=elsewhere(cohort, side, places))
            for side in range(1, len(sides))
        ],
        differences(found, places.environments, places.runs),
        sorted(
            (metric for metric, there in zip(cohort.columns, compared, strict=True) if there),
            key=lambda one: metric_place("", one),
        ),
        cohort.suites,
        comparison,
    )


@dataclass
class _Kernels:
    """The variants of the compilations of an experiment in a run, and the number of their kernels."""

    variants: list[str] = field(default_factory=list)
    count: int = 0


@dataclass
class _Comparison:
    """The pairs of all candidates, and the rows of those that may have moved; `row` makes the others."""

    cohort: Cohort
    pairs: list[Pairs]  # of each candidate
    rules: Rules
    places: Places
    metric: str
    moved: dict[int, Row] = field(default_factory=dict)
    _cards: dict[tuple[int, str], Collection[str]] = field(default_factory=dict)

    def judge_moved(self) -> None:
        """Judge what may have moved, in the light of its cards and kernels: 2 statements."""
        moved = sorted({one for pairs in self.pairs for one in pairs.experiment[~pairs.quiet].tolist()})
        self._cards = _cards(self.cohort, moved)
        judged = {one: [self._judged(one, place) for place in range(len(self.pairs))] for one in moved}
        kernels = _apply_draws(judged.values())
        for one, of_heads in judged.items():
            self.moved[one] = _row(int(self.cohort.ids[one]), of_heads, kernels)

    def _judged(self, one: int, place: int) -> list[Judged]:
        """Return the first pair of an experiment, and those that may have moved."""
        pairs = self.pairs[place]
        first, last = int(pairs.first[one]), int(pairs.last[one])
        if first < 0:
            return []
        return [self._judge(at, place) for at in range(first, last) if at == first or not pairs.quiet[at]]

    def _judge(self, at: int, place: int) -> Judged:
        pairs, cohort = self.pairs[place], self.cohort
        one, column = int(pairs.experiment[at]), int(pairs.column[at])
        base, head = (
            cohort.sides[side].point(int(cohort.at[side][one, column]), side) for side in (0, place + 1)
        )
        measured = self.places.of(base), self.places.of(head)
        noise = float(pairs.noise[at])
        known = Known(
            None if np.isnan(noise) else noise,
            int(pairs.points[at]),
            self._cards.get((head.series_id, measured[1].class_key), ()),
        )
        return judge(cohort.columns[column], self.rules.of(one, column), (base, head), measured, known)

    def row(self, one: int) -> Row:
        if one in self.moved:
            return self.moved[one]
        firsts = [int(pairs.first[one]) for pairs in self.pairs]
        cells = [self._judge(at, place) if at >= 0 else None for place, at in enumerate(firsts)]
        row = Row(int(self.cohort.ids[one]), cells)
        if row.best is None:
            cohort = self.cohort
            there = [
                (int(cohort.column_order[one, column]), side, column)
                for side, table in enumerate(cohort.at)
                for column in np.flatnonzero(table[one] >= 0).tolist()
                if self.metric in ("", cohort.columns[column].name)
            ]
            _order, side, column = min(there)
            row.alone = cohort.sides[side].point(int(cohort.at[side][one, column]), side)
            row.alone_metric = cohort.columns[column]
        return row

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
            judged = judged[pairs.score[pairs.first[judged]] > score[judged]]
            firsts = pairs.first[judged]
            score[judged] = pairs.score[firsts]
            section[judged] = np.where(pairs.both_fail[firsts], 3, 2)
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
        change = np.append(pairs.change, np.nan)[pairs.first].tolist()
        for one in experiments:
            if row := self.moved.get(one):
                if (cell := row.cells[place]) and cell.change is not None:
                    found.append((cell.verdict, cell.change))
            elif math.isfinite(change[one]):
                found.append(("unchanged", change[one]))
        return found


def _cards(cohort: Cohort, experiments: Sequence[int]) -> dict[tuple[int, str], Collection[str]]:
    """Return the cards of each series of these experiments and class of environments: 1 statement."""
    found = cohort.at[0][experiments]
    series = cohort.sides[0].series[found[found >= 0]]
    rows = fetch_tuples(
        """
        SELECT series_id, class_key, ARRAY(SELECT jsonb_array_elements_text(coalesce(level->'cards', '[]')))
        FROM hud_seriesstate WHERE series_id = ANY(%(series)s)
        """,
        {"series": series.tolist()},
    )
    return {(pk, class_key): cards for pk, class_key, cards in rows}


_KernelsOf = Mapping[tuple[int, int], _Kernels]  # by run and experiment


def _apply_draws(judged: Iterable[list[list[Judged]]]) -> _KernelsOf:
    """Take the autotuner's draw out of the verdicts; return the kernels of all moved points: 1 statement."""
    lists = [pairs for of_heads in judged for pairs in of_heads]
    moved = [one for pairs in lists for one in pairs if one.moved or one.undecided]
    rows = (
        Compilation.objects.filter(
            experiment__in={one.base.experiment_id for one in moved},
            run__in={point.run_id for one in moved for point in (one.base, one.head)},
        )
        .annotate(count=Func("kernels", function="cardinality", output_field=IntegerField()))
        .values_list("run_id", "experiment_id", "variant", "count")
    )
    kernels: dict[tuple[int, int], _Kernels] = {}
    for run, experiment, variant, count in rows:
        of_run = kernels.setdefault((run, experiment), _Kernels())
        of_run.variants.append(variant if count <= _FEW_KERNELS else "")
        of_run.count = max(of_run.count, count)
    nothing = _Kernels()
    for pairs in lists:
        for index, one in enumerate(pairs):
            base, head = (
                kernels.get((point.run_id, point.experiment_id), nothing).variants
                for point in (one.base, one.head)
            )
            pairs[index] = by_draw(one, base, head)
    return kernels


def _row(pk: int, of_heads: Sequence[Sequence[Judged]], kernels: _KernelsOf) -> Row:
    """Return the row of what moved; the pairs of each candidate have the experiment's main metric first."""
    cells: list[Judged | None] = []
    also: list[str] = []
    for pairs in of_heads:
        telling = sorted((one for one in pairs if one.moved), key=lambda one: -one.score)
        unsure = sorted((one for one in pairs if one.undecided), key=lambda one: -one.score)
        leading = [one for one in pairs[:1] if one.moved or one.undecided]
        order = [*telling, *leading, *unsure, *pairs]
        cells.append(order[0] if order else None)
        also += [one.metric.title for one in telling[1:] if one.metric.title not in also]
    row = Row(pk, cells, also)
    if row.best is None:
        return row
    runs = row.best.base.run_id, row.best.head.run_id
    old, new = (kernels.get((run, pk)) for run in runs)
    if old and new:
        row.code = f"run:{runs[0]}/experiment:{pk}", f"run:{runs[1]}/experiment:{pk}"
        if old.count != new.count:
            row.facts = f"{new.count} kernels, was {old.count}"
    for one in of_heads[0]:
        ends = one.base.value, one.head.value  # None where it failed
        if one.metric.name == _BREAKS and one is not row.best and ends[0] != ends[1] and None not in ends:
            row.facts = f"graph breaks {ends[0]:.0f} → {ends[1]:.0f}"
    return row


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
