"""Numbers for a comparison as a whole and for each suite and backend: cases, pass rate, means with their
interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hud.judging import aggregates
from hud.judging.compare.judged import OTHER_PLACES
from hud.judging.compare.points import Cohort, GroupKey, Places, Points
from hud.models import Metric
from hud.sql import Bools, Floats, Ints
from hud.tables.table import DataTable
from runner.schema.metrics import device_time_of
from runner.schema.statistics import t_test

Sides = tuple[Points, Points]  # the baseline and a candidate
Statistic = Literal["geometric mean", "sum"]
COMPRESSION = "compression_ratio"
_LEAST = 0.0005  # less is written as 0.0 %
_MEAN = DataTable("""
    metric=metric.name unit=metric.unit direction=metric.direction statistic base head change low high p
    matched only_base only_head
""")


@dataclass(frozen=True)
class Mean:
    """The geometric means of a metric over the matched cases, or their sums. The change has a 95 % interval
    and a p-value by Student's t over the cases, None with too few."""

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
        if self.low <= 0 <= self.high or abs(self.change or 0.0) < _LEAST:
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
    across_places: bool  # which are what is compared

    @property
    def is_tinted(self) -> bool:
        return self.is_same_place or self.across_places

    @property
    def tiles(self) -> list[tuple[str, Mean | None, str]]:
        """Return each kind with its mean, tinted if what is compared may be the cause."""
        means = [(kind, self.means.get(kind)) for kind in (*KINDS, TIME)]
        return [(kind, mean, mean.tone if mean and self.is_tinted else "") for kind, mean in means]

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

    @property
    def is_telling(self) -> bool:
        """Return whether a mean moved, and what is compared may be the cause."""
        return self.is_tinted and any(mean.tone for mean in self.means.values())

    def to_json(self) -> dict[str, Any]:
        return {
            **self.key._asdict(),
            "base_pass_rate": self.counts["base_passed"] / self.counts["expected"],
            "head_pass_rate": self.counts["head_passed"] / self.counts["expected"],
            **super().to_json(),
        }


def read(cohort: Cohort, side: int, places: Places, known: Bools) -> list[CohortGroup]:
    """Return the groups of the baseline and that side, of which `known` failures are no news."""
    sides = cohort.sides[0], cohort.sides[side]
    elsewhere, across_places = places.elsewhere(*sides), not OTHER_PLACES.isdisjoint(cohort.across)
    kinds, by_device = [_kind(metric) for metric in cohort.metrics], _by_device(cohort)
    groups = []
    for key, members in cohort.members:
        counts = _counted(sides, members, known[members])
        if not counts["expected"]:
            continue
        order = np.argsort(cohort.order[members[0]]).tolist()
        means = _means(cohort, sides, members, [one for at in order for one in (by_device[at], at)], kinds)
        groups.append(CohortGroup(counts, not elsewhere[members].any(), means, across_places, key))
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
                ends = [end * base.size / before for end in t_test((head - base).tolist())[:2]]
            low, high = ends if ends and all(map(math.isfinite, ends)) else (None, None)
            means[TIME] = Mean(
                metric, before, float(head.sum()), low, high, matched=base.size, statistic="sum"
            )
    counts = _counted(sides, np.arange(cohort.ids.size), known)
    tinted = any(group.across_places for group in groups)
    return Totals(counts, all(group.is_same_place for group in groups), means, tinted)


@dataclass(frozen=True)
class Axis:
    """The change of one metric in each experiment of both sides where it may decide."""

    metric: Metric
    changes: list[tuple[int, str, float]]  # experiment, backend, change
    noise: float  # from point to point, of the experiment in the middle


def axes(cohort: Cohort, side: int, of_all: Totals, noise: Floats) -> list[Axis]:
    """Return an axis for each metric of the totals' means; `noise` is that of `judged.screen`."""
    base, head = cohort.sides[0].deciding, cohort.sides[side].deciding
    backends = {row: key.backend for key, members in cohort.members for row in members.tolist()}
    shown = []
    for metric in {mean.metric.pk: mean.metric for mean in of_all.means.values()}.values():
        column = cohort.metrics.index(metric)
        rows = np.flatnonzero((base[:, column] > 0) & (head[:, column] > 0))
        changes = (head[rows, column] / base[rows, column] - 1).tolist()
        dots = [
            (int(cohort.ids[row]), backends[row], change)
            for row, change in zip(rows.tolist(), changes, strict=True)
        ]
        shown.append(Axis(metric, dots, float(np.nan_to_num(np.median(noise[rows, column])))))
    return shown


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
