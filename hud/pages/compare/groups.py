"""Numbers for a comparison as a whole and for each suite and backend: cases, pass rate, means with their
interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hud.judging.aggregates import (
    FEWEST_CASES,
    FEWEST_TO_CALL,
    HUD_PASSES,
    HudRow,
    PassRate,
    hud_geometric_mean,
    hud_pass_rate,
    paired_means,
    ratio_of,
)
from hud.models import Metric
from hud.pages.compare.cohort import Cohort, Key
from hud.pages.compare.points import Bools, Floats, Ints, add_details
from runner.schema.metrics import device_time_of
from runner.schema.statistics import t_interval

Formulas = Literal["", "hud"]
Statistic = Literal["geometric mean", "arithmetic mean", "sum"]
_ACCURACY, _SPEEDUP, COMPRESSION = "accuracy", "speedup", "compression_ratio"


@dataclass(frozen=True)
class Mean:
    """The geometric means of a metric over the matched cases, or their sums; by PyTorch HUD's formulas each
    side's own means, which are arithmetic but for speedups. The change has a 95 % interval and a p-value by
    Student's t over the cases, None with too few."""

    metric: Metric
    base: float | None
    head: float | None
    ratio: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    matched: int = 0
    only_base: int = 0
    only_head: int = 0
    statistic: Statistic = "geometric mean"

    @property
    def change(self) -> float | None:
        return None if self.ratio is None else self.ratio - 1

    @property
    def tone(self) -> str:
        """Return better or worse where the interval of enough cases leaves no change out, else ''."""
        if (
            self.low is None
            or self.high is None
            or self.low <= 0 <= self.high
            or self.matched < FEWEST_TO_CALL
        ):
            return ""
        return "better" if (self.low > 0) == (self.metric.direction == "up") else "worse"

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "direction": self.metric.direction,
            "statistic": self.statistic,
            "base": self.base,
            "head": self.head,
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "matched": self.matched,
            "only_base": self.only_base,
            "only_head": self.only_head,
        }


@dataclass(frozen=True)
class Group:
    """One suite and backend on both sides."""

    key: Key
    matched: int
    only_base: int
    only_head: int
    base_passed: PassRate
    head_passed: PassRate
    rates: tuple[float | None, float | None]  # by the chosen formulas
    means: dict[str, Mean]  # speed, compile time, memory
    is_same_place: bool  # no other card, host or environment: a difference may be the code's

    @property
    def suite(self) -> str:
        return self.key[0]

    @property
    def backend(self) -> str:
        return self.key[1]

    @property
    def rest(self) -> str:
        return " · ".join(filter(None, self.key[2:]))

    @property
    def cells(self) -> list[Mean | None]:
        return [self.means.get(kind) for kind in KINDS]

    @property
    def is_telling(self) -> bool:
        """Return whether a mean moved, and the code may be the cause."""
        return self.is_same_place and any(mean.tone for mean in self.means.values())

    def to_json(self) -> dict[str, Any]:
        names = ("suite", "backend", "mode", "dtype", "arch")
        return {
            **dict(zip(names, self.key, strict=True)),
            "matched": self.matched,
            "only_base": self.only_base,
            "only_head": self.only_head,
            "base_passed": self.base_passed.passed,
            "head_passed": self.head_passed.passed,
            "expected": self.head_passed.expected,
            "base_pass_rate": self.rates[0],
            "head_pass_rate": self.rates[1],
            "same_place": self.is_same_place,
            "means": {kind: mean.to_json() for kind, mean in self.means.items()},
        }


KINDS = ("speed", "compile time", "memory")
TIME = "time"  # of all matched cases together
_TIME_UNITS = {"s", "ms", "µs"}


@dataclass(frozen=True)
class Totals:
    """All experiments of both sides together. Each of `means` is of the metric that most of them have."""

    matched: int
    base_passed: int
    head_passed: int
    expected: int
    new_failures: int
    new_passes: int
    means: dict[str, Mean]  # of `KINDS`, and the sum of a time
    is_same_place: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            "base_passed": self.base_passed,
            "head_passed": self.head_passed,
            "expected": self.expected,
            "new_failures": self.new_failures,
            "new_passes": self.new_passes,
            "same_place": self.is_same_place,
            "means": {kind: mean.to_json() for kind, mean in self.means.items()},
        }


def totals(cohort: Cohort, side: int, *, elsewhere: Bools) -> Totals:
    """Return the numbers of the baseline and that side over all suites and backends."""
    has = cohort.has(0), cohort.has(side)
    both = has[0] & has[1]
    good = [has[at] & np.all(cohort.good(place), axis=1) for at, place in enumerate((0, side))]
    return Totals(
        int(both.sum()),
        int(good[0].sum()),
        int(good[1].sum()),
        int((has[0] | has[1]).sum()),
        int((both & good[0] & ~good[1]).sum()),
        int((both & ~good[0] & good[1]).sum()),
        _total_means(cohort, (cohort.values(0), cohort.values(side))),
        not np.any(elsewhere & both),
    )


def _total_means(cohort: Cohort, tables: tuple[Floats, Floats]) -> dict[str, Mean]:
    """Return for each kind the metric that most cases of both sides have; of those with as many, the one that
    stands first in their suites, by device time where they all do."""
    both = (tables[0] > 0) & (tables[1] > 0)
    counts = both.sum(axis=0)
    places = np.where(both, cohort.column_order, 0).sum(axis=0) / np.maximum(counts, 1)
    order = [at for at in np.lexsort((places, -counts)).tolist() if counts[at]]
    by_device = _by_device(cohort)
    found: dict[str, Mean] = {}
    for at in order:
        column = by_device[at] if counts[by_device[at]] == counts[at] else at
        metric, kind = cohort.columns[column], _kind(cohort.columns[column])
        is_time = kind == "speed" and metric.unit in _TIME_UNITS
        if not kind or (kind in found and (not is_time or TIME in found)):
            continue
        base, head = (table[both[:, column], column] for table in tables)
        if kind not in found:
            found[kind] = _mean(metric, base, head)
        if is_time and TIME not in found:
            found[TIME] = _sum(metric, base, head)
    return {kind: found[kind] for kind in (*KINDS, TIME) if kind in found}


def _mean(metric: Metric, base: Floats, head: Floats, only_base: int = 0, only_head: int = 0) -> Mean:
    before, after, low, high, p = paired_means(base, head)
    low, high = (None if one is None else one - 1 for one in (low, high))
    ratio = ratio_of(before, after)
    return Mean(metric, before, after, ratio, low, high, p, base.size, only_base, only_head)


def _sum(metric: Metric, base: Floats, head: Floats) -> Mean:
    before, after = float(base.sum()), float(head.sum())
    low, high = None, None
    if base.size >= FEWEST_CASES:
        ends = [end * base.size / before for end in t_interval((head - base).tolist())]
        if all(map(math.isfinite, ends)):
            low, high = ends
    ratio = ratio_of(before, after)
    return Mean(metric, before, after, ratio, low, high, matched=base.size, statistic="sum")


def groups(cohort: Cohort, side: int, *, formulas: Formulas, elsewhere: Bools) -> list[Group]:
    """Return the groups of the baseline and that side; `elsewhere` are the experiments whose points were
    measured on another card or host or in another environment. With PyTorch HUD's formulas: 1 statement."""
    tables = cohort.values(0), cohort.values(side)
    has = cohort.has(0), cohort.has(side)
    good = np.all(cohort.good(0), axis=1), np.all(cohort.good(side), axis=1)
    hud_rows = (_hud_rows(cohort, 0), _hud_rows(cohort, side)) if formulas == "hud" else None
    kinds, by_device = [_kind(metric) for metric in cohort.columns], _by_device(cohort)
    found = []
    for key, members in cohort.members:
        left, right = has[0][members], has[1][members]
        either = left | right
        if not either.any():
            continue
        passed = (
            PassRate(int(np.sum(left & good[0][members])), int(either.sum()), ()),
            PassRate(int(np.sum(right & good[1][members])), int(either.sum()), ()),
        )
        rates = passed[0].rate, passed[1].rate
        means = _means(cohort, members, tables, kinds, by_device)
        if hud_rows:
            rows = [[one[at] for at in members.tolist() if at in one] for one in hud_rows]
            rates = hud_pass_rate(rows[0]), hud_pass_rate(rows[1])
            means = _hud_means(cohort, rows, means)
            for kind in ("compile time", "memory"):
                if kind in means:
                    means[kind] = _hud_mean(cohort, members, means[kind].metric, tables, hud_rows)
        both = int(np.sum(left & right))
        here = not np.any(elsewhere[members] & left & right)
        alone = int(left.sum()) - both, int(right.sum()) - both
        found.append(Group(key, both, *alone, *passed, rates, means, here))
    return found


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
    names = {metric.name: column for column, metric in enumerate(cohort.columns)}
    return [names[device_time_of(metric.name, names)] for metric in cohort.columns]


def _means(
    cohort: Cohort,
    members: Ints,
    tables: tuple[Floats, Floats],
    kinds: Sequence[str],
    by_device: Sequence[int],
) -> dict[str, Mean]:
    """Return for each kind the first metric that cases of both sides have, by device time where they do."""
    found: dict[str, Mean] = {}
    left, right = tables[0][members] > 0, tables[1][members] > 0
    both = left & right
    counts, lefts, rights = (one.sum(axis=0).tolist() for one in (both, left, right))
    order = np.argsort(cohort.column_order[members[0]]).tolist()
    for column in dict.fromkeys(one for at in order for one in (by_device[at], at)):
        kind, matched = kinds[column], counts[column]
        if not kind or kind in found or not matched:
            continue
        base, head = (table[members, column][both[:, column]] for table in tables)
        alone = lefts[column] - matched, rights[column] - matched
        found[kind] = _mean(cohort.columns[column], base, head, *alone)
    return {kind: found[kind] for kind in KINDS if kind in found}


def _hud_rows(cohort: Cohort, side: int) -> dict[int, HudRow]:
    """Return the experiments of a side as PyTorch's HUD reads them: 1 statement."""
    names = {metric.name: column for column, metric in enumerate(cohort.columns)}
    at, backends = cohort.at[side], {pk: key[1] for key, members in cohort.members for pk in members.tolist()}
    accuracies = {}
    if (column := names.get(_ACCURACY)) is not None:
        there = np.flatnonzero(at[:, column] >= 0)
        points = cohort.sides[side].points(at[there, column], side)
        accuracies = dict(zip(there.tolist(), points, strict=True))
    add_details(accuracies.values())
    speedups = cohort.values(side)[:, names[_SPEEDUP]] if _SPEEDUP in names else None
    rows = {}
    for one in np.flatnonzero(cohort.has(side)).tolist():
        found = accuracies.get(one)
        word = (found.code or ("pass" if found.good else found.status)) if found else ""
        speedup = 0.0 if speedups is None else float(np.nan_to_num(speedups[one]))
        rows[one] = HudRow(word, speedup, backends[one])
    return rows


def _hud_mean(
    cohort: Cohort,
    members: Ints,
    metric: Metric,
    tables: Sequence[Floats],
    hud_rows: Sequence[Mapping[int, HudRow]],
) -> Mean:
    """Return PyTorch HUD's mean of compile time or memory: arithmetic, over each side's passing rows that
    have a value."""
    column = cohort.columns.index(metric)
    ends: list[float | None] = []
    for table, rows in zip(tables, hud_rows, strict=True):
        passing = [at for at in members.tolist() if at in rows and rows[at].accuracy in HUD_PASSES]
        found = table[passing, column]
        ends.append(float(np.mean(found[found > 0])) if np.any(found > 0) else None)
    before, after = ends
    ratio = after / before if before and after else None
    return Mean(metric, before, after, ratio, statistic="arithmetic mean")


def _hud_means(cohort: Cohort, rows: list[list[HudRow]], means: dict[str, Mean]) -> dict[str, Mean]:
    """Replace the mean of speedups by PyTorch HUD's, which has no matched cohort and so no interval."""
    metric = next((one for one in cohort.columns if one.name == _SPEEDUP), None)
    if metric is None:
        return means
    before, after = map(hud_geometric_mean, rows)
    ratio = after / before if before and after else None
    return {**means, "speed": Mean(metric, before or None, after or None, ratio)}
