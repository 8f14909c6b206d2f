"""Numbers for each suite and backend of a comparison: cases, pass rate, means with their interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hud.judging.aggregates import (
    GeometricMean,
    HudRow,
    PassRate,
    compare_means,
    hud_geometric_mean,
    hud_pass_rate,
    pass_rate,
)
from hud.models import Experiment, Metric
from hud.pages.compare.points import Point
from hud.pages.values import metric_place

Key = tuple[str, str, str, str, str]
Formulas = Literal["", "hud"]
Points = Mapping[int, Mapping[int, Point]]  # experiment → metric → point
_ACCURACY, _SPEEDUP, COMPRESSION = "accuracy", "speedup", "compression_ratio"


@dataclass(frozen=True)
class Mean:
    """The geometric means of a metric over the matched cases; by PyTorch HUD's formulas each side's own."""

    metric: Metric
    found: GeometricMean

    @property
    def change(self) -> float | None:
        return None if self.found.ratio is None else self.found.ratio - 1

    @property
    def low(self) -> float | None:
        return None if self.found.low is None else self.found.low - 1

    @property
    def high(self) -> float | None:
        return None if self.found.high is None else self.found.high - 1

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
            "base": self.found.base,
            "head": self.found.head,
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "p": self.found.p,
            "matched": len(self.found.matched),
            "only_base": len(self.found.only_base),
            "only_head": len(self.found.only_head),
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


def key_of(experiment: Experiment) -> Key:
    one = experiment
    return one.suite, one.backend, one.mode, one.dtype, one.arch or one.device


def groups(
    experiments: Mapping[int, Experiment],
    metrics: Mapping[int, Metric],
    base: Points,
    head: Points,
    *,
    formulas: Formulas,
    elsewhere: set[int],
) -> list[Group]:
    """Return the groups of both sides; `elsewhere` are the experiments whose two points were measured on
    another card or host or in another environment."""
    by_key: dict[Key, list[int]] = {}
    for pk in sorted(base.keys() | head.keys()):
        by_key.setdefault(key_of(experiments[pk]), []).append(pk)
    found = []
    for key, members in sorted(by_key.items()):
        left = {pk: base[pk] for pk in members if pk in base}
        right = {pk: head[pk] for pk in members if pk in head}
        both = left.keys() & right.keys()
        means = _means(key[0], left, right, metrics)
        passed = _passed(left, members), _passed(right, members)
        rates = passed[0].rate, passed[1].rate
        if formulas == "hud":
            rates = _hud(left, metrics, key[1])[0], _hud(right, metrics, key[1])[0]
            means = _hud_means(left, right, metrics, key[1], means)
        here = not (both & elsewhere)
        found.append(
            Group(key, len(both), len(left) - len(both), len(right) - len(both), *passed, rates, means, here)
        )
    return found


def _passed(side: Points, expected: Sequence[int]) -> PassRate:
    good = {str(pk): all(point.good for point in points.values()) for pk, points in side.items()}
    return pass_rate(good, [str(pk) for pk in expected])


def _kind(name: str) -> str:
    lower = name.lower()
    if "compil" in lower:
        return "compile time"
    is_memory = ("mem" in lower and "bandwidth" not in lower) or "rss" in lower or lower == COMPRESSION
    return "memory" if is_memory else "speed"


def _means(suite: str, left: Points, right: Points, metrics: Mapping[int, Metric]) -> dict[str, Mean]:
    """Return for each kind the first metric that cases of both sides have."""
    found: dict[str, Mean] = {}
    present = {metric for points in left.values() for metric in points}
    for pk in sorted(present, key=lambda pk: metric_place(suite, metrics[pk])):
        metric = metrics[pk]
        if metric.direction == "none" or metric.kind != "timing" or _kind(metric.name) in found:
            continue
        mean = Mean(metric, compare_means(_values(left, pk), _values(right, pk)))
        if mean.found.matched:
            found[_kind(metric.name)] = mean
    return {kind: found[kind] for kind in KINDS if kind in found}


def _values(side: Points, metric: int) -> dict[str, float]:
    return {
        str(pk): points[metric].value or 0.0
        for pk, points in side.items()
        if metric in points and points[metric].value is not None
    }


def _hud(side: Points, metrics: Mapping[int, Metric], backend: str) -> tuple[float | None, float]:
    """Return pass rate and mean speedup of a side by PyTorch HUD's formulas."""
    rows = []
    for points in side.values():
        by_name = {metrics[pk].name: point for pk, point in points.items()}
        accuracy, speedup = by_name.get(_ACCURACY), by_name.get(_SPEEDUP)
        word = (accuracy.code or ("pass" if accuracy.good else accuracy.status)) if accuracy else ""
        rows.append(HudRow(word, (speedup.value if speedup else None) or 0.0, backend))
    return hud_pass_rate(rows), hud_geometric_mean(rows)


def _hud_means(
    left: Points, right: Points, metrics: Mapping[int, Metric], backend: str, means: dict[str, Mean]
) -> dict[str, Mean]:
    """Replace the mean of speedups by PyTorch HUD's, which has no matched cohort and so no interval."""
    metric = next((one for one in metrics.values() if one.name == _SPEEDUP), None)
    if metric is None:
        return means
    before, after = _hud(left, metrics, backend)[1], _hud(right, metrics, backend)[1]
    ratio = after / before if before and after else None
    found = GeometricMean(before or None, after or None, ratio, None, None, None, (), (), ())
    return {**means, "speed": Mean(metric, found)}
