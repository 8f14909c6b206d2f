"""Numbers for each suite and backend of a comparison: cases, pass rate, means with their interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hud.judging.aggregates import (
    HUD_PASSES,
    HudRow,
    PassRate,
    hud_geometric_mean,
    hud_pass_rate,
    paired_means,
)
from hud.models import Metric
from hud.pages.compare.cohort import Cohort, Key
from hud.pages.compare.points import Bools, Floats, Ints, add_words
from runner.schema.metrics import device_time_of

Formulas = Literal["", "hud"]
_ACCURACY, _SPEEDUP, COMPRESSION = "accuracy", "speedup", "compression_ratio"


@dataclass(frozen=True)
class Mean:
    """The geometric means of a metric over the matched cases; by PyTorch HUD's formulas each side's own,
    which are arithmetic but for speedups. The change has a 95 % interval and a p-value by Student's t over
    the cases, None with too few."""

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

    @property
    def change(self) -> float | None:
        return None if self.ratio is None else self.ratio - 1

    @property
    def tone(self) -> str:
        """Return better or worse where the interval leaves no change out, else ''."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return ""
        return "better" if (self.low > 0) == (self.metric.direction == "up") else "worse"

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "direction": self.metric.direction,
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


def groups(cohort: Cohort, side: int, *, formulas: Formulas, elsewhere: Bools) -> list[Group]:
    """Return the groups of the baseline and that side; `elsewhere` are the experiments whose points were
    measured on another card or host or in another environment. With PyTorch HUD's formulas: 1 statement."""
    tables = cohort.values(0), cohort.values(side)
    has = cohort.has(0), cohort.has(side)
    good = np.all(cohort.good(0), axis=1), np.all(cohort.good(side), axis=1)
    hud_rows = (_hud_rows(cohort, 0), _hud_rows(cohort, side)) if formulas == "hud" else None
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
        means = _means(cohort, members, tables)
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


def _kind(name: str) -> str:
    lower = name.lower()
    if "compil" in lower and not lower.startswith("compiled_"):  # that is the time of the compiled code
        return "compile time"
    is_memory = ("mem" in lower and "bandwidth" not in lower) or "rss" in lower or lower == COMPRESSION
    return "memory" if is_memory else "speed"


def _means(cohort: Cohort, members: Ints, tables: tuple[Floats, Floats]) -> dict[str, Mean]:
    """Return for each kind the first metric that cases of both sides have, by device time where they do."""
    found: dict[str, Mean] = {}
    names = {metric.name: column for column, metric in enumerate(cohort.columns)}
    order = np.argsort(cohort.column_order[members[0]]).tolist()
    by_device = {at: names[device_time_of(cohort.columns[at].name, names)] for at in order}
    for column in dict.fromkeys(one for at in order for one in (by_device[at], at)):
        metric = cohort.columns[column]
        if metric.direction == "none" or metric.kind != "timing" or _kind(metric.name) in found:
            continue
        base, head = tables[0][members, column], tables[1][members, column]
        left, right = base > 0, head > 0
        both = left & right
        if matched := int(both.sum()):
            before, after, low, high, p = paired_means(base[both], head[both])
            alone = int(left.sum()) - matched, int(right.sum()) - matched
            low, high = (None if one is None else one - 1 for one in (low, high))
            ratio = after / before
            found[_kind(metric.name)] = Mean(metric, before, after, ratio, low, high, p, matched, *alone)
    return {kind: found[kind] for kind in KINDS if kind in found}


def _hud_rows(cohort: Cohort, side: int) -> dict[int, HudRow]:
    """Return the experiments of a side as PyTorch's HUD reads them: 1 statement."""
    names = {metric.name: column for column, metric in enumerate(cohort.columns)}
    at, backends = cohort.at[side], {pk: key[1] for key, members in cohort.members for pk in members.tolist()}
    accuracies = {}
    if (column := names.get(_ACCURACY)) is not None:
        there = np.flatnonzero(at[:, column] >= 0).tolist()
        accuracies = {one: cohort.sides[side].point(int(at[one, column]), side) for one in there}
    add_words(accuracies.values())
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
    return Mean(metric, before, after, after / before if before and after else None)


def _hud_means(cohort: Cohort, rows: list[list[HudRow]], means: dict[str, Mean]) -> dict[str, Mean]:
    """Replace the mean of speedups by PyTorch HUD's, which has no matched cohort and so no interval."""
    metric = next((one for one in cohort.columns if one.name == _SPEEDUP), None)
    if metric is None:
        return means
    before, after = map(hud_geometric_mean, rows)
    ratio = after / before if before and after else None
    return {**means, "speed": Mean(metric, before or None, after or None, ratio)}
