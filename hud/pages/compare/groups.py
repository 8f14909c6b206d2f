"""Numbers for a comparison as a whole and for each suite and backend: cases, pass rate, means with their
interval."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hud.judging.aggregates import (
    FEWEST_CASES,
    FEWEST_TO_CALL,
    HUD_PASSES,
    HudRow,
    compare_means,
    hud_geometric_mean,
    hud_pass_rate,
    ratio_of,
)
from hud.models import Metric
from hud.pages.attributes import attributes
from hud.pages.compare.environment import Places
from hud.pages.compare.rows import Key, Points, Row
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
            **attributes(self.metric, "unit direction"),
            **attributes(self, "statistic base head change low high p matched only_base only_head"),
        }


KINDS = ("speed", "compile time", "memory")
TIME = "time"  # of all matched cases together
_TIME_UNITS = {"s", "ms", "µs"}
Values = dict[str, tuple[dict[str, float], dict[str, float]]]  # positive ones by metric, side and experiment


@dataclass
class Totals:
    """All experiments of both sides together. Each of `means` is of the metric that most of them have."""

    counts: Counter[str]
    is_same_place: bool  # no other card, host or environment: a difference may be the code's
    means: dict[str, Mean] = field(default_factory=dict)  # of `KINDS`, and the sum of a time

    def to_json(self) -> dict[str, Any]:
        names = ("matched", "base_passed", "head_passed", "expected", "new_failures", "new_passes")
        return {**self._counted(names), "same_place": self.is_same_place, "means": self._means()}

    def _counted(self, names: Sequence[str]) -> dict[str, int]:
        return {name: self.counts[name] for name in names}

    def _means(self) -> dict[str, Any]:
        return {kind: mean.to_json() for kind, mean in self.means.items()}


@dataclass
class Group(Totals):
    """One suite and backend on both sides."""

    key: Key = ("", "", "", "", "")
    values: Values = field(default_factory=dict)
    rates: tuple[float | None, float | None] = (None, None)  # by the chosen formulas

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
        names = ("matched", "only_base", "only_head", "base_passed", "head_passed", "expected")
        return {
            **dict(zip(("suite", "backend", "mode", "dtype", "arch"), self.key, strict=True)),
            **self._counted(names),
            "base_pass_rate": self.rates[0],
            "head_pass_rate": self.rates[1],
            "same_place": self.is_same_place,
            "means": self._means(),
        }


def totals(groups: Sequence[Group], orders: Mapping[str, Sequence[Metric]]) -> Totals:
    """Return the numbers over all suites and backends. For each kind the metric counts that most cases of
    both sides have; of those with as many, the one that stands first in their suites, by device time where
    they all do."""
    counts = sum((group.counts for group in groups), Counter[str]())
    found = Totals(counts, all(group.is_same_place for group in groups))
    matched: Values = defaultdict(lambda: ({}, {}))
    places: Counter[str] = Counter()
    for group in groups:
        for place, metric in enumerate(orders[group.suite]):
            sides = group.values.get(metric.name, ({}, {}))
            cases = sides[0].keys() & sides[1].keys()
            for mine, own in zip(matched[metric.name], sides, strict=True):
                mine.update((case, own[case]) for case in cases)
            places[metric.name] += place * len(cases)
    count = {name: len(base) for name, (base, _head) in matched.items() if base}
    metrics = {metric.name: metric for order in orders.values() for metric in order}
    for name in sorted(count, key=lambda name: (-count[name], places[name] / count[name], name)):
        by_device = device_time_of(name, metrics)
        metric = metrics[by_device if count.get(by_device) == count[name] else name]
        kind, values = _kind(metric), matched[metric.name]
        if kind and kind not in found.means:
            found.means[kind] = _mean(metric, *values)
        if kind == "speed" and metric.unit in _TIME_UNITS and TIME not in found.means:
            found.means[TIME] = _sum(metric, *([side[case] for case in values[0]] for side in values))
    found.means = {kind: found.means[kind] for kind in (*KINDS, TIME) if kind in found.means}
    return found


def _mean(metric: Metric, base: Mapping[str, float], head: Mapping[str, float]) -> Mean:
    mean = compare_means(base, head)
    low, high = (None if end is None else end - 1 for end in (mean.low, mean.high))
    matched, only_base, only_head = map(len, (mean.matched, mean.only_base, mean.only_head))
    return Mean(metric, mean.base, mean.head, mean.ratio, low, high, mean.p, matched, only_base, only_head)


def _sum(metric: Metric, base: Sequence[float], head: Sequence[float]) -> Mean:
    before, after = math.fsum(base), math.fsum(head)
    low, high = None, None
    if len(base) >= FEWEST_CASES:
        steps = [new - old for old, new in zip(base, head, strict=True)]
        ends = [end * len(base) / before for end in t_interval(steps)]
        if all(map(math.isfinite, ends)):
            low, high = ends
    ratio = ratio_of(before, after)
    return Mean(metric, before, after, ratio, low, high, matched=len(base), statistic="sum")


def read(
    rows: Sequence[Row], side: int, orders: Mapping[str, Sequence[Metric]], places: Places, formulas: Formulas
) -> list[Group]:
    """Return the groups of the baseline and that side."""
    by_key: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row.points[0] or row.points[side]:
            by_key[row.group].append(row)
    groups = []
    for key in sorted(by_key):
        group = _group(key, by_key[key], side, orders[key[0]], places)
        if formulas == "hud":
            _use_hud_formulas(group, by_key[key], side, orders[key[0]])
        group.means = {kind: group.means[kind] for kind in KINDS if kind in group.means}
        groups.append(group)
    return groups


def _group(key: Key, rows: Sequence[Row], side: int, order: Sequence[Metric], places: Places) -> Group:
    counts: Counter[str] = Counter(expected=len(rows))
    values: Values = defaultdict(lambda: ({}, {}))
    compared = set()
    for row in rows:
        base, head = row.points[0], row.points[side]
        passed = [bool(points) and all(one.good for one in points.values()) for points in (base, head)]
        both = bool(base and head)
        counts.update(
            matched=both,
            only_base=not head,
            only_head=not base,
            base_passed=passed[0],
            head_passed=passed[1],
            new_failures=both and passed == [True, False],
            new_passes=both and passed == [False, True],
        )
        compared |= {(places.of(one), places.of(head[name])) for name, one in base.items() if name in head}
        for end, points in enumerate((base, head)):
            for name, one in points.items():
                if one.value is not None and one.value > 0:
                    values[name][end][str(row.pk)] = one.value
    group = Group(counts, all(one == other for one, other in compared), key=key, values=values)
    group.rates = counts["base_passed"] / len(rows), counts["head_passed"] / len(rows)
    metrics = {metric.name: metric for metric in order}
    by_device = (metrics[device_time_of(name, metrics)] for name in metrics)
    for metric in (one for pair in zip(by_device, order, strict=True) for one in pair):
        base_values, head_values = values[metric.name]
        kind = _kind(metric)
        if kind and kind not in group.means and base_values.keys() & head_values.keys():
            group.means[kind] = _mean(metric, base_values, head_values)
    return group


def _use_hud_formulas(group: Group, rows: Sequence[Row], side: int, order: Sequence[Metric]) -> None:
    sides = [[row.points[at] for row in rows if row.points[at]] for at in (0, side)]
    hud_rows = [[_hud_row(points, group.backend) for points in of_side] for of_side in sides]
    group.rates = hud_pass_rate(hud_rows[0]), hud_pass_rate(hud_rows[1])
    for kind in group.means.keys() - {"speed"}:
        metric = group.means[kind].metric
        ends = [_hud_mean(*of_side, metric) for of_side in zip(sides, hud_rows, strict=True)]
        group.means[kind] = _of_ends(metric, ends, "arithmetic mean")
    for metric in order:
        if metric.name == _SPEEDUP:
            ends = [hud_geometric_mean(of_side) or None for of_side in hud_rows]
            group.means["speed"] = _of_ends(metric, ends, "geometric mean")


def _kind(metric: Metric) -> str:
    """Return which of `KINDS` a metric belongs to, '' if it has no mean."""
    if metric.direction == "none" or metric.kind != "timing":
        return ""
    lower = metric.name.lower()
    if "compil" in lower and not lower.startswith("compiled_"):  # that is the time of the compiled code
        return "compile time"
    is_memory = ("mem" in lower and "bandwidth" not in lower) or "rss" in lower or lower == COMPRESSION
    return "memory" if is_memory else "speed"


def _of_ends(metric: Metric, ends: Sequence[float | None], statistic: Statistic) -> Mean:
    base, head = ends
    return Mean(metric, base, head, head / base if base and head else None, statistic=statistic)


def _hud_row(points: Points, backend: str) -> HudRow:
    """Return an experiment as PyTorch's HUD reads it."""
    accuracy, speedup = points.get(_ACCURACY), points.get(_SPEEDUP)
    word = accuracy.code or ("pass" if accuracy.good else accuracy.status) if accuracy else ""
    return HudRow(word, (speedup.value or 0.0) if speedup else 0.0, backend)


def _hud_mean(sides: Sequence[Points], hud_rows: Sequence[HudRow], metric: Metric) -> float | None:
    """Return PyTorch HUD's mean of compile time or memory: arithmetic, over passing rows with a value."""
    found = [
        one.value
        for points, row in zip(sides, hud_rows, strict=True)
        if row.accuracy in HUD_PASSES and (one := points.get(metric.name)) and one.value and one.value > 0
    ]
    return math.fsum(found) / len(found) if found else None
