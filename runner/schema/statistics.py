"""Statistics that both halves share: the runner's stopping rule and the judgement use the same ones.

Standard library only: a machine that just uploads results has no numpy.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

# A normal distribution's standard deviation is 1.4826 times its median absolute deviation.
MAD_TO_SD = 1.4826
LEAST_PAIRS = 5  # with fewer, an interval of Student's t says nearly nothing
PAIR_FLOOR = 0.02  # a change of less than this is none
PAIR_ALPHA = 0.005  # the p-value up to which pairs confirm a change
_MANY = 1000  # degrees of freedom from which t is the normal distribution's
_MOST_LOG = 700.0  # beyond it a ratio is no double


# How parts of a task ended, the worst first; only a whole task can be `cancelled`.
SEVERITY_ORDER = (
    *("wrong", "impossible", "crashed", "oom", "timed_out", "failed", "cancelled", "not_run", "unsupported"),
    *("cannot_tell", "ok"),
)


def severity(status: str) -> int:
    """Return a number that is larger for a worse status; an unknown word counts as a failure."""
    known = status if status in SEVERITY_ORDER else "failed"
    return len(SEVERITY_ORDER) - SEVERITY_ORDER.index(known)


def median(values: Sequence[float]) -> float:
    """Return the median. Raise ValueError without values. It beats numpy's: samples are few, calls many."""
    return float(statistics.median(values))


# How the samples of one process become its value: their median; the median of those after the first, where
# that one holds a compilation; or their sum, where each counts anew.
ValueRule = Literal["median", "steady", "sum"]


def steady(values: Sequence[float]) -> Sequence[float]:
    """Return the samples after the first, which holds the compilation; the first if it is the only one."""
    return values[1:] if len(values) > 1 else values


def value_of(values: Sequence[float], rule: ValueRule) -> float:
    """Return the value of a process from its samples in measured order. Raise ValueError without samples."""
    if rule == "sum":
        return math.fsum(values)
    return median(steady(values) if rule == "steady" else values)


def spread_of(values: Sequence[float], rule: ValueRule) -> float:
    """Return the spread of the samples that make the value; 0 for a sum."""
    if rule == "sum":
        return 0.0
    return spread(steady(values) if rule == "steady" else values)


def spread(values: Sequence[float]) -> float:
    """Return the robust relative spread of one process's samples: 1.4826 · MAD / |median|; 0 for one sample.

    Never use it as a confidence interval for a verdict: samples of one process are correlated, and two
    processes of the same code differ by more.
    """
    if len(values) < 2:
        return 0.0
    middle = median(values)
    deviation = MAD_TO_SD * median([abs(value - middle) for value in values])
    relative = deviation / abs(middle) if middle else 0.0
    return relative if math.isfinite(relative) else 0.0  # a ratio to nearly nothing says nothing


def geometric_mean(values: Sequence[float]) -> float:
    """Return exp(mean(log)). Raise ValueError without values or if one is not positive."""
    if not all(value > 0 for value in values):
        raise ValueError("a geometric mean needs positive values")
    return math.exp(statistics.fmean(map(math.log, values)))


@lru_cache(maxsize=4096)
def student_t(p: float, degrees: int) -> float:
    """Return the t whose two-sided p-value is `p`, by halving."""
    low, high = 0.0, 1.0
    while student_p(high, degrees) > p:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > p else (low, middle)
    return high


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    middle = statistics.fmean(values)
    # statistics.stdev takes 20 times as long, by exact fractions
    return middle, math.fsum([(value - middle) * (value - middle) for value in values]) / (len(values) - 1)


def t_test(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 95 % Student interval of the mean of independent values, two or more, and the p-value of a
    mean of zero."""
    middle, variance = _mean_and_variance(values)
    error = math.sqrt(variance / len(values))
    half = error * student_t(0.05, min(len(values) - 1, _MANY))
    t = middle / error if error else math.inf if middle else 0.0
    return middle - half, middle + half, student_p(t, len(values) - 1)


def welch(base: Sequence[float], head: Sequence[float]) -> tuple[float, float, float]:
    """Return the 95 % interval and p-value of mean(head) − mean(base) for sides of unequal scatter, of two
    values or more each."""
    (base_mean, base_variance), (head_mean, head_variance) = map(_mean_and_variance, (base, head))
    parts = base_variance / len(base), head_variance / len(head)
    error, step = math.sqrt(sum(parts)), head_mean - base_mean
    if error == 0.0:
        return step, step, 0.0 if step else 1.0
    weight = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (base, head), strict=True))
    degrees = max(int(error**4 / weight), 1)
    half = error * student_t(0.05, min(degrees, _MANY))
    return step - half, step + half, student_p(step / error, degrees)


def block_standard_error(values: Sequence[float], blocks: int = 10) -> float:
    """Return the standard error of the mean from block means, infinity for fewer than two values a block.

    Consecutive samples of one process are correlated (lag-1 up to 0.85 was seen); the formula for independent
    samples is then three times too small.
    """
    size = len(values) // blocks
    if size < 2:
        return math.inf
    means = [statistics.fmean(values[block * size : (block + 1) * size]) for block in range(blocks)]
    return statistics.stdev(means) / math.sqrt(blocks)


def student_p(t: float, degrees: int) -> float:
    """Return the two-sided p-value of Student's t, by the finite sums for whole degrees of freedom."""
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = (1.0, 1.0) if degrees % 2 == 0 else (cosine, cosine if degrees > 1 else 0.0)
    for step in range(2 + degrees % 2, degrees, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    inside = sine * total if degrees % 2 == 0 else 2 / math.pi * (angle + sine * total)
    return min(1.0, max(0.0, 1 - inside))


@dataclass(frozen=True)
class PairedChange:
    """The result of process pairs, new against base: log ratios, their mean with its 95 % Student interval
    and p-value. Without two pairs there is no interval, and `low`, `high` and `p` are None."""

    ratios: tuple[float, ...]  # log(new / base), one for each pair
    low: float | None
    high: float | None
    p: float | None
    is_exact: bool  # any change counts

    @property
    def change(self) -> float | None:
        """Return the relative change of the geometric mean: 0.05 for 5 % more. None without a pair."""
        return math.expm1(min(statistics.fmean(self.ratios), _MOST_LOG)) if self.ratios else None

    @property
    def word(self) -> Literal["confirmed", "dismissed", "inconclusive"]:
        """Return `confirmed` for a change, `dismissed` if it is below the floor, else `inconclusive`."""
        if len(self.ratios) < LEAST_PAIRS or self.low is None or self.high is None or self.p is None:
            return "inconclusive"
        limit = 0.0 if self.is_exact else math.log1p(PAIR_FLOOR)
        if -limit <= self.low and self.high <= limit:
            return "dismissed"
        sure = self.low > 0 or self.high < 0
        return "confirmed" if sure and (self.is_exact or self.p <= PAIR_ALPHA) else "inconclusive"


def paired_change(pairs: Sequence[tuple[float, float]], *, is_exact: bool = False) -> PairedChange:
    """Compare base and new of process pairs; `is_exact` values, such as counts, have no noise. Where one
    changes from or to what is not positive there are no ratios.

    Each pair gives one log ratio: two processes of the same code differ by more than the samples of one
    process show. Values with noise take the surer of two tests, its p-value doubled for the choice: pairs
    cancel what both of their processes share, such as a busy host; sides have twice the degrees of freedom,
    which decides among five.
    """
    have_ratios = all(base == new or min(base, new) > 0 for base, new in pairs)
    ratios = tuple(
        0.0 if new == base else math.log(new) - math.log(base) for base, new in pairs if have_ratios
    )
    if len(ratios) < 2:
        return PairedChange(ratios, None, None, None, is_exact)
    low, high, p = t_test(ratios)
    if not is_exact and all(value > 0 for pair in pairs for value in pair):
        base, new = zip(*pairs, strict=True)
        by_sides = welch([*map(math.log, base)], [*map(math.log, new)])
        low, high, p = min((low, high, p), by_sides, key=lambda interval: interval[2])
        p = min(1.0, 2 * p)
    return PairedChange(ratios, low, high, p, is_exact)


def pair_middles(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the geometric means of base and new, whose ratio is the change; medians if a value is not
    positive. Raise ValueError without pairs."""
    base, new = (_middle(side) for side in list(zip(*pairs, strict=True)) or [(), ()])
    return base, new


def _middle(values: Sequence[float]) -> float:
    if len(set(values)) < 2 or not all(value > 0 for value in values):
        return median(values)
    return geometric_mean(values)


QUANTILES = (20, 50, 80)  # percent, operatorbench's


def quantiles(values: Sequence[float], weights: Sequence[int] | None = None) -> list[float]:
    """Return the values at 20, 50 and 80 %. Without weights interpolate linearly between two values, as numpy
    does; with weights take the smallest value at which that share of all weight is reached."""
    if weights is None:
        tenths = statistics.quantiles(values if len(values) > 1 else [*values] * 2, n=10, method="inclusive")
        return [tenths[percent // 10 - 1] for percent in QUANTILES]
    pairs = sorted(zip(values, weights, strict=True))
    reached = list(itertools.accumulate(weight for _value, weight in pairs))
    parts = list(zip(pairs, reached, strict=True))
    return [
        next(value for (value, _weight), sum_ in parts if 100 * sum_ >= percent * reached[-1])
        for percent in QUANTILES
    ]
