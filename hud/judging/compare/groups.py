"""Numbers for a comparison as a whole and for each suite and backend: cases, pass rate, means with their
interval."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hud.judging import aggregates
from hud.judging.compare.points import Cohort, ComparedPoint, GroupKey, Places, Points, add_details
from hud.models import Metric
from hud.sql import Bools, Ints
from hud.tables.table import DataTable
from runner.schema.metrics import device_time_of
from runner.schema.statistics import t_interval

Formulas = Literal["", "hud"]
Sides = tuple[Points, Points]  # the baseline and a candidate
Statistic = Literal["geometric mean", "arithmetic mean", "sum"]
_ACCURACY, _SPEEDUP, COMPRESSION = "accuracy", "speedup", "compression_ratio"
_MEAN = DataTable("""
    metric=metric.name unit=metric.unit direction=metric.direction statistic base head change low high p
    matched only_base only_head
""")


@dataclass(frozen=True)
class Mean:
    """The geometric means of a metric over the matched cases, or their sums; by PyTorch HUD's formulas each
    side's own means, which are arithmetic but for speedups. The change has a 95 % interval and a p-value by
    Student's t over the cases, None with too few."""

    metric: Metric
    base: float | None
    head: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    matched: int = 0
    only_base: int = 0
    only_head: int = 0
    statistic: Statistic = "geometric mean"

    @property
    def change(self) -> float | None:
        return aggregates.ratio_of(self.base, self.head) - 1 if self.base and self.head else None

    @property
    def tone(self) -> str:
        """Return better or worse where the interval of enough cases leaves no change out, else ''."""
        if self.low is None or self.high is None or self.matched < aggregates.FEWEST_TO_CALL:
            return ""
        if self.low <= 0 <= self.high:
            return ""
        return "better" if (self.low > 0) == (self.metric.direction == "up") else "worse"


KINDS = ("speed", "compile time", "memory")
TIME = "time"  # of all matched cases together
_TIME_UNITS = {"s", "ms", "µs"}


@dataclass
class Totals:
    """All experiments of both sides together. Each of `means` is of the metric that most of them have."""

    counts: dict[str, int]
    is_same_place: bool  # no other card, host or environment: a difference may be the code's
    means: dict[str, Mean]  # of `KINDS`, and the sum of a time

    @property
    def tiles(self) -> list[tuple[str, Mean | None, str]]:
        """Return each kind with its mean, tinted if the code may be the cause."""
        means = [(kind, self.means.get(kind)) for kind in (*KINDS, TIME)]
        return [(kind, mean, mean.tone if mean and self.is_same_place else "") for kind, mean in means]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.counts,
            "same_place": self.is_same_place,
            "means": {kind: _MEAN.row(mean) for kind, mean in self.means.items()},
        }


@dataclass
class CohortGroup(Totals):
    """One suite and backend on both sides."""

    key: GroupKey
    rates: tuple[float | None, float | None]  # by the chosen formulas

    @property
    def is_telling(self) -> bool:
        """Return whether a mean moved, and the code may be the cause."""
        return self.is_same_place and any(mean.tone for mean in self.means.values())

    def to_json(self) -> dict[str, Any]:
        return {
            **self.key._asdict(),
            "base_pass_rate": self.rates[0],
            "head_pass_rate": self.rates[1],
            **super().to_json(),
        }


def read(cohort: Cohort, side: int, places: Places, formulas: Formulas, known: Bools) -> list[CohortGroup]:
    """Return the groups of the baseline and that side, of which `known` failures are no news. With PyTorch
    HUD's formulas: 2 statements."""
    sides = cohort.sides[0], cohort.sides[side]
    elsewhere = places.elsewhere(*sides)
    hud_rows = [_hud_rows(cohort, side) for side in sides] if formulas == "hud" else None
    kinds, by_device = [_kind(metric) for metric in cohort.metrics], _by_device(cohort)
    groups = []
    for key, members in cohort.members:
        counts = _counted(sides, members, known[members])
        if not counts["expected"]:
            continue
        rates: list[float | None] = [
            counts[name] / counts["expected"] for name in ("base_passed", "head_passed")
        ]
        order = np.argsort(cohort.order[members[0]]).tolist()
        means = _means(cohort, sides, members, [row for at in order for row in (by_device[at], at)], kinds)
        if hud_rows:
            rows = [{at: row[at] for at in members.tolist() if at in row} for row in hud_rows]
            rates = [aggregates.hud_pass_rate(list(row.values())) for row in rows]
            means = _hud_means(cohort, sides, rows, means)
        groups.append(CohortGroup(counts, not elsewhere[members].any(), means, key, (rates[0], rates[1])))
    return groups


def totals(cohort: Cohort, side: int, groups: Sequence[CohortGroup], known: Bools) -> Totals:
    """Return the numbers of the baseline and that side over all suites and backends. For each kind the metric
    counts that most cases of both sides have; of those with as many, the one that stands first in their
    suites, by device time where they all do."""
    sides = cohort.sides[0], cohort.sides[side]
    both = (sides[0].deciding > 0) & (sides[1].deciding > 0)
    matched = both.sum(axis=0)
    rank = np.where(both, cohort.order, 0).sum(axis=0) / np.maximum(matched, 1)
    kinds, by_device = [_kind(metric) for metric in cohort.metrics], _by_device(cohort)
    order = [
        by_device[at] if matched[by_device[at]] == matched[at] else at
        for at in np.lexsort((rank, -matched)).tolist()
    ]
    means = _means(cohort, sides, np.arange(cohort.ids.size), order, kinds)
    for column in order:
        metric = cohort.metrics[column]
        if kinds[column] == "speed" and metric.unit in _TIME_UNITS and matched[column] and TIME not in means:
            base, head = (side.table.value[both[:, column], column] for side in sides)
            before, ends = float(base.sum()), list[float]()
            if base.size >= aggregates.FEWEST_CASES:
                ends = [end * base.size / before for end in t_interval((head - base).tolist())]
            low, high = ends if ends and all(map(math.isfinite, ends)) else (None, None)
            means[TIME] = Mean(
                metric, before, float(head.sum()), low, high, matched=base.size, statistic="sum"
            )
    counts = _counted(sides, np.arange(cohort.ids.size), known)
    return Totals(counts, all(group.is_same_place for group in groups), means)


def _counted(sides: Sides, members: Ints, known: Bools) -> dict[str, int]:
    """Return how many experiments are on which side, and pass there; `known` says which fail as is known."""
    (left, base_passes), (right, head_passes) = ((side.has[members], side.passes[members]) for side in sides)
    both = left & right
    failures = both & base_passes & ~head_passes
    counted = {
        "matched": both,
        "only_base": left & ~right,
        "only_head": right & ~left,
        "expected": left | right,
        "base_passed": base_passes,
        "head_passed": head_passes,
        "new_failures": failures & ~known,
        "known_failures": failures & known,
        "new_passes": both & head_passes & ~base_passes,
        "undecided": sides[1].table.undecided[members].any(axis=1),
    }
    return {name: int(np.count_nonzero(flags)) for name, flags in counted.items()}


def _means(
    cohort: Cohort, sides: Sides, members: Ints, order: Iterable[int], kinds: Sequence[str]
) -> dict[str, Mean]:
    """Return for each kind the first metric of `order` that cases of both sides have."""
    by_kind: dict[str, Mean] = {}
    tables = [side.deciding[members] for side in sides]
    left, right = (table > 0 for table in tables)
    both = left & right
    counts, lefts, rights = (part.sum(axis=0).tolist() for part in (both, left, right))
    for column in order:
        kind, matched = kinds[column], counts[column]
        if kind and kind not in by_kind and matched:
            base, head = (table[both[:, column], column] for table in tables)
            before, after, low, high, p = aggregates.paired_means(base, head)
            low, high = (None if bound is None else bound - 1 for bound in (low, high))
            alone = lefts[column] - matched, rights[column] - matched
            by_kind[kind] = Mean(cohort.metrics[column], before, after, low, high, p, matched, *alone)
    return {kind: by_kind[kind] for kind in KINDS if kind in by_kind}


def _kind(metric: Metric) -> str:
    """Return which of `KINDS` a metric belongs to, '' if it has no mean."""
    if metric.direction == "none" or metric.kind != "timing":
        return ""
    lower = metric.name.lower()
    if "compil" in lower and not lower.startswith("compiled_"):  # that is the time of the compiled code
        return "compile time"
    is_memory = ("mem" in lower and "bandwidth" not in lower) or "rss" in lower or lower == COMPRESSION
    return "memory" if is_memory else "speed"


def _by_device(cohort: Cohort) -> list[int]:
    """Return for each metric the one that tells the same by device time, or itself."""
    names = {metric.name: column for column, metric in enumerate(cohort.metrics)}
    return [names[device_time_of(metric.name, names)] for metric in cohort.metrics]


def _hud_rows(cohort: Cohort, side: Points) -> dict[int, aggregates.HudRow]:
    """Return the experiments of a side as PyTorch's HUD reads them: 1 statement."""
    columns = {metric.name: column for column, metric in enumerate(cohort.metrics)}
    backends = {row: key.backend for key, members in cohort.members for row in members.tolist()}
    accuracies: dict[int, ComparedPoint] = {}
    if (column := columns.get(_ACCURACY)) is not None:
        there = np.flatnonzero(side.there[:, column])
        points = side.points(there, np.full(there.size, column))
        add_details(points)
        accuracies = dict(zip(there.tolist(), points, strict=True))
    rows = {}
    for row in np.flatnonzero(side.has).tolist():
        accuracy = accuracies.get(row)
        word = (accuracy.code or ("pass" if accuracy.good else accuracy.status)) if accuracy else ""
        speedup = float(np.nan_to_num(side.deciding[row, columns[_SPEEDUP]])) if _SPEEDUP in columns else 0.0
        rows[row] = aggregates.HudRow(word, speedup, backends[row])
    return rows


def _hud_means(
    cohort: Cohort, sides: Sides, rows: Sequence[Mapping[int, aggregates.HudRow]], means: Mapping[str, Mean]
) -> dict[str, Mean]:
    """Return PyTorch HUD's means, over each side's own passing rows and so without an interval: geometric of
    speedups, else arithmetic."""
    changed = dict(means)
    for kind in means.keys() - {"speed"}:
        column = cohort.metrics.index(means[kind].metric)
        ends = []
        for side, of_side in zip(sides, rows, strict=True):
            passing = side.deciding[
                [row for row, cell in of_side.items() if cell.accuracy in aggregates.HUD_PASSES], column
            ]
            ends.append(float(np.mean(passing[passing > 0])) if np.any(passing > 0) else None)
        changed[kind] = Mean(means[kind].metric, ends[0], ends[1], statistic="arithmetic mean")
    for metric in cohort.metrics:
        if metric.name == _SPEEDUP:
            base, head = (aggregates.hud_geometric_mean(list(of_side.values())) or None for of_side in rows)
            changed["speed"] = Mean(metric, base, head)
    return changed
