"""Numbers for a whole suite: pass rate and geometric mean, ours and by the formulas of PyTorch's HUD."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runner.schema.statistics import geometric_mean, t_test

Array = NDArray[np.float64]
FEWEST_CASES = 2  # matched cases for an interval
FEWEST_TO_CALL = 3  # to call a mean better or worse
_MOST_LOG = 700.0  # beyond it a ratio is no double; two cases that moved oppositely by far reach it


@dataclass(frozen=True)
class PassRate:
    """Cases that passed, of those expected; `missing` were expected and have no result. The numbers of
    `undecided` ones may not decide, whether they passed or not."""

    passed: int
    expected: int
    missing: tuple[str, ...]
    undecided: int = 0


@dataclass(frozen=True)
class GeometricMean:
    """Geometric means of both sides over the matched cases. `ratio` is head ÷ base with its 95 % interval and
    p-value by Student's t over the cases, None with too few."""

    base: float | None = None
    head: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    matched: tuple[str, ...] = ()
    only_base: tuple[str, ...] = ()
    only_head: tuple[str, ...] = ()


def pass_rate(passed: Mapping[str, bool], expected: Collection[str], undecided: int = 0) -> PassRate:
    """Return the share of expected cases that passed; a case without a result did not. Cases that nobody
    expected count as expected once they have a result."""
    cases = set(expected) | set(passed)
    return PassRate(sum(passed.values()), len(cases), tuple(sorted(cases - set(passed))), undecided)


def compare_means(base: Mapping[str, float], head: Mapping[str, float]) -> GeometricMean:
    """Compare the geometric means of the cases that both sides have; what is not positive has none."""
    left, right = (
        {case: value for case, value in side.items() if value > 0 and math.isfinite(value)}
        for side in (base, head)
    )
    matched = tuple(sorted(left.keys() & right.keys()))
    only = tuple(sorted(left.keys() - right.keys())), tuple(sorted(right.keys() - left.keys()))
    if not matched:
        return GeometricMean(only_base=only[0], only_head=only[1])
    sides = (np.array([side[case] for case in matched]) for side in (left, right))
    before, after, low, high, p = paired_means(*sides)
    return GeometricMean(before, after, ratio_of(before, after), low, high, p, matched, *only)


def paired_means(base: Array, head: Array) -> tuple[float, float, float | None, float | None, float | None]:
    """Return the geometric means of positive values that belong together, one of each side for every case;
    then the 95 % interval of their ratio and the p-value of no change, None with too few cases."""
    left, right = np.log(base).tolist(), np.log(head).tolist()
    before, after = (math.exp(math.fsum(side) / len(side)) for side in (left, right))
    if len(left) < FEWEST_CASES:
        return before, after, None, None, None
    low, high, p = t_test([new - old for old, new in zip(left, right, strict=True)])
    return before, after, math.exp(max(low, -_MOST_LOG)), math.exp(min(high, _MOST_LOG)), p


def ratio_of(before: float, after: float) -> float:
    """Return after ÷ before of positive values, the largest ratio where it is beyond a double."""
    return min(after / before, math.exp(_MOST_LOG))


def hud_geometric_mean(speedups: Iterable[float]) -> float:
    """Return PyTorch HUD's geometric mean of the speedups of passing rows, to 0.01; 0 without any."""
    positive = [speedup for speedup in speedups if speedup > 0]
    return round(geometric_mean(positive), 2) if positive else 0.0


def moved_side(
    eager: tuple[float, float], compiled: tuple[float, float], *, noise: float, factor: float = 2.5
) -> Literal["eager", "compiled", "both", "neither"]:
    """Return which side of a speedup moved, from its times (before, after); `noise` is that of one time.

    A speedup that fell because eager got faster is no regression of the compiler.
    """
    limit = factor * noise * math.sqrt(2)
    moved = [abs(math.log(after / before)) > limit for before, after in (eager, compiled)]
    if all(moved):
        return "both"
    return "eager" if moved[0] else "compiled" if moved[1] else "neither"


def discoveries(p_values: Sequence[float], share: float = 0.05) -> list[bool]:
    """Return which findings stand if at most `share` of them may be false on average (Benjamini-Hochberg)."""
    ordered = sorted(p_values)
    ranks = enumerate(ordered, start=1)
    most = max((p for rank, p in ranks if p <= share * rank / len(ordered)), default=-1.0)
    return [p <= most for p in p_values]
