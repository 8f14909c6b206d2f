"""Decide whether a new value is better or worse than its series was. Numbers only.

The history is the accepted level, all of it. A value is suspect past the floors and 2.5 standard deviations
of the series' own noise, and changed past 4.2; several samples of one point, such as a silent repeat, count
by their median. Noise comes from first differences, so that slow drift does not hide in it; a short history
leans on a prior. A value whose variant (the autotuner's choices) is known is compared with that variant only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runner.schema.statistics import MAD_TO_SD, median, student_p

Array = NDArray[np.float64]
Word = Literal["improved", "unchanged", "regressed", "inconclusive", "failed", "new"]
_SHORT = 8  # fewer earlier values than this tell little about their noise
_NOISE_WINDOW = 100
FEWEST = 5  # earlier compilations below which only an exact test may call a timing changed
SMALL_STEP = 0.01  # of many points, which a look back finds
_VARIANT_NOISE = 0.005  # of a known variant, at least
_EXACT_P = 0.001
_OF_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median ÷ that of the mean


@dataclass(frozen=True)
class Rule:
    """The rule by which a metric is judged. A change must exceed the floors. A value is suspect past
    `suspect_factor` standard deviations and changed past `noise_factor`. `prior_noise` is the assumed
    relative standard deviation between compilations of a series with little history. A derived metric is
    computed of others; its noise is at least `least_noise`, that of its own compilations. `small_step` is the
    smallest step of many points. With `judged` False a series has no verdicts, with True it opens regressions
    whatever its metric's role is."""

    direction: Literal["up", "down", "none"] = "down"
    kind: Literal["timing", "deterministic", "status"] = "timing"
    relative_floor: float = 0.02
    absolute_floor: float = 0.0
    suspect_factor: float = 2.5
    noise_factor: float = 4.2
    prior_noise: float = 0.015
    is_derived: bool = False
    least_noise: float = 0.0
    small_step: float = SMALL_STEP
    judged: bool | None = None


@dataclass(frozen=True)
class Verdict:
    """The result of judging a run. `change` is relative to `baseline`, with the sign of the value's movement;
    `factor` is the change in units of the noise of one new value against its baseline. A suspect is past the
    floors and the noise, but not surely: it is worth a silent repeat."""

    verdict: Word
    change: float | None = None
    noise: float | None = None
    factor: float | None = None
    baseline: float | None = None
    baseline_n: int = 0
    suspect: bool = False
    reason: str = ""  # a code; `hud.judging.compare.judged.REASONS` has the words


def judge(
    history: Sequence[float],
    samples: Sequence[float],
    rule: Rule,
    *,
    groups: Sequence[str | None] | None = None,
    group: str | None = None,
) -> Verdict:
    """Judge a point's samples, one for each compilation, against `history`: earlier values of the same
    environment class, oldest first, from the accepted level on.

    `groups` is the variant of each earlier value and `group` the point's. A known variant is judged against
    its own values. A variant never seen, and any point with fewer than five earlier values, is inconclusive
    unless an exact test and the level's range leave no doubt. Without samples the run failed; without history
    the series is new. Raise ValueError for NaN or infinity, or if `groups` differ in length from `history`.
    """
    if not all(map(math.isfinite, history)) or not all(map(math.isfinite, samples)):
        raise ValueError("a verdict needs finite numbers")
    if groups is not None and len(groups) != len(history):
        raise ValueError("each earlier value needs a group or None")
    if not samples:
        return Verdict("failed", baseline_n=len(history))
    if not history:
        return Verdict("new")
    value = median(samples)
    if rule.kind != "timing":
        return _judge_exact(history, value, rule)
    if groups is not None and any(groups):
        return _judge_variant(history, samples, rule, groups, group)
    return _judge_level(history, samples, rule)


def judge_points(
    base: Sequence[float], head: Sequence[float], rule: Rule, *, noise: float | None, points: int
) -> Verdict:
    """Judge a point against another one, each with a sample for every compilation. `noise` is that of the
    series from point to point (None: the prior), known from `points` of them."""
    if not base or not head:
        return Verdict("failed" if base else "new", baseline_n=len(base))
    if rule.kind != "timing":
        return _judge_exact([median(base)], median(head), rule)
    verdict = _compare(
        [median(base)],
        [median(head)],
        rule,
        noise=noise or rule.prior_noise,
        degrees=1.5 * min(points, _NOISE_WINDOW) + 3,
    )
    if points * len(base) < FEWEST or points < 2:
        return _only_if_certain(verdict, base, head, "few_compilations")
    return verdict


def point_factors(steps: Array, noise: Array, points: NDArray[np.int64]) -> Array:
    """Return `factor` as `judge_points` has it, for many changes of these sizes in log space."""
    degrees = 1.5 * np.minimum(points, _NOISE_WINDOW) + 3
    ratios = steps / (noise * math.sqrt(1 + math.pi / 2))
    factors: Array = np.sqrt(degrees * np.log1p(ratios * ratios / degrees))
    return factors * (8 * degrees + 1) / (8 * degrees + 3)


def _judge_variant(
    history: Sequence[float],
    samples: Sequence[float],
    rule: Rule,
    groups: Sequence[str | None],
    group: str | None,
) -> Verdict:
    own = [earlier for earlier, name in zip(history, groups, strict=True) if name == group]
    if group is None or not own:
        return _only_if_certain(_judge_level(history, samples, rule), history, samples, "unknown_variant")
    noise = max(_noise_inside(history, groups, rule), _VARIANT_NOISE)
    verdict = _compare(own, samples, rule, noise=noise, degrees=float(len(history)))
    if len(history) < FEWEST or len(own) < 2:
        return _only_if_certain(verdict, history, samples, "few_compilations")
    return verdict


def _judge_level(history: Sequence[float], samples: Sequence[float], rule: Rule) -> Verdict:
    noise = series_noise(history, rule.prior_noise)
    degrees = 1.5 * min(len(history), _NOISE_WINDOW) + 3  # fewer would cost more power than false alarms
    verdict = _compare(history, samples, rule, noise=noise, degrees=degrees)
    if len(history) < FEWEST:
        return _only_if_certain(verdict, history, samples, "few_compilations")
    return verdict


def _compare(
    earlier: Sequence[float], samples: Sequence[float], rule: Rule, *, noise: float, degrees: float
) -> Verdict:
    """Compare the median of the samples with that of the earlier values, by the noise of one value."""
    value, baseline, noise = median(samples), median(earlier), max(noise, rule.least_noise)
    step = _difference(baseline, value)
    ratio = abs(step) / (noise * math.sqrt(1 / len(samples) + math.pi / 2 / len(earlier)))
    # the noise is itself an estimate: Student's t as the normal deviate of equal probability (Wallace 1959)
    factor = math.sqrt(degrees * math.log1p(ratio * ratio / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    verdict = Verdict("unchanged", _relative(baseline, value), noise, factor, baseline, len(earlier))
    if abs(step) <= math.log1p(rule.relative_floor) or abs(value - baseline) <= rule.absolute_floor:
        return replace(verdict, reason="within_floor")
    if factor <= rule.suspect_factor:
        return replace(verdict, reason="within_noise")
    if factor <= rule.noise_factor:
        return replace(verdict, verdict="inconclusive", suspect=True, reason="suspect")
    word = _word(value - baseline, rule)
    return replace(verdict, verdict=word, reason="no_direction" if word == "inconclusive" else "")


def _only_if_certain(
    verdict: Verdict, history: Sequence[float], samples: Sequence[float], reason: str
) -> Verdict:
    """Return the verdict, but a change only where the level's own distribution leaves no doubt."""
    if verdict.reason == "within_floor":
        return verdict
    if verdict.verdict in {"improved", "regressed"} and _certain(history, samples):
        return verdict
    return replace(verdict, verdict="inconclusive", suspect=verdict.verdict != "unchanged", reason=reason)


def _certain(history: Sequence[float], samples: Sequence[float]) -> bool:
    """Return whether an exact rank test or Student's t gives p ≤ .001 and the change exceeds the range."""
    scale = _scaled([*history, *samples])
    old, new = scale[: len(history)], scale[len(history) :]
    outside = float(min(new)) > float(max(old)) or float(max(new)) < float(min(old))
    if not outside or abs(float(np.median(new) - np.median(old))) <= float(np.ptp(old)):
        return False
    if 2 / math.comb(len(old) + len(new), len(new)) <= _EXACT_P:  # every new value beyond every old one
        return True
    if len(old) < 3:
        return False
    error = max(float(np.std(old, ddof=1)), _VARIANT_NOISE) * math.sqrt(1 / len(new) + 1 / len(old))
    return student_p(float(np.mean(new) - np.mean(old)) / error, len(old) - 1) <= _EXACT_P


def _noise_inside(history: Sequence[float], groups: Sequence[str | None], rule: Rule) -> float:
    """Return the noise of values around the median of their variant, the prior's if none came twice."""
    scale = _scaled(history)
    names = np.array([name if name is not None else "" for name in groups])
    rest, freedom = [], 0
    for name in set(groups) - {None}:
        own = scale[names == name]
        if len(own) > 1:
            rest.append(np.abs(own - np.median(own)))
            freedom += len(own) - 1
    if freedom < 3:
        return rule.prior_noise
    off = np.concatenate(rest)
    limit = max(3 * MAD_TO_SD * float(np.median(off)), _VARIANT_NOISE)
    return math.sqrt(float((np.minimum(off, limit) ** 2).sum()) / freedom)


def noise_of_median(samples: Sequence[float]) -> float:
    """Return the relative standard error of a median of independent compilations; 0 for a single one."""
    middle = median(samples) if len(samples) > 1 else 0.0
    if not middle:
        return 0.0
    return _OF_MEDIAN * float(np.std(samples, ddof=1)) / math.sqrt(len(samples)) / abs(middle)


def series_noise(history: Sequence[float], prior: float) -> float:
    """Return the relative standard deviation of a value around its level, from first log differences.

    Differences of independent values have √2 of their deviation; those past three deviations, such as a
    step's, count as three. Where the deviation around the median is no larger, it is taken. A positive
    lag-1 correlation of the values makes differences too small, so it is put back. A short history leans
    on the prior.
    """
    values = _scaled(history[-_NOISE_WINDOW:])
    if values.size < 3:
        return prior
    differences = np.abs(np.diff(values))
    limit = 3 * MAD_TO_SD * float(np.median(differences))
    own = math.sqrt(float(np.mean(np.minimum(differences, limit) ** 2)) / 2)
    off = np.abs(values - np.median(values))
    around = math.sqrt(float(np.mean(np.minimum(off, 3 * MAD_TO_SD * float(np.median(off))) ** 2)))
    if around <= 1.3 * own:
        own = around  # no drift and little correlation: the better estimate
    else:
        own /= math.sqrt(1 - min(_lag_1(values), 0.8))
    weight = 4 * min(1.0, _SHORT / values.size) ** 2  # values that the prior stands for
    own = math.sqrt(((values.size - 1) * own**2 + weight * prior**2) / (values.size - 1 + weight))
    return max(own, prior / 10)  # equal values only show a coarse clock


def _lag_1(logs: Array) -> float:
    """Return the lag-1 correlation; a running median removes steps first, which are not correlation."""
    if logs.size < 12:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(logs, 3, mode="edge"), 7)
    residuals = logs - np.median(windows, axis=1)
    variance = float(np.mean(residuals**2))
    if variance == 0.0:
        return 0.0
    return max(float(np.mean(residuals[1:] * residuals[:-1])) / variance, 0.0)


def _judge_exact(history: Sequence[float], value: float, rule: Rule) -> Verdict:
    """Judge a count, such as graph breaks: any change of the latest value above the absolute floor."""
    baseline = history[-1]
    is_same = abs(value - baseline) <= rule.absolute_floor
    word: Word = "unchanged" if is_same else _word(value - baseline, rule)
    return Verdict(word, _relative(baseline, value), 0.0, None, baseline, len(history))


def _word(difference: float, rule: Rule) -> Word:
    if rule.direction == "none":
        return "inconclusive"
    return "improved" if (difference > 0) == (rule.direction == "up") else "regressed"


def _scaled(values: Sequence[float]) -> Array:
    """Return logs of positive values, else the values relative to the largest magnitude."""
    numbers = np.asarray(values, dtype=np.float64)
    if bool(np.all(numbers > 0)):
        return np.log(numbers)
    return numbers / (float(np.max(np.abs(numbers))) or 1.0)


def _difference(baseline: float, value: float) -> float:
    """Return the log ratio of positive values, else the difference relative to the larger magnitude."""
    if baseline > 0 and value > 0:
        return math.log(value) - math.log(baseline)
    scale = max(abs(baseline), abs(value))
    return value / scale - baseline / scale if scale else 0.0


def _relative(baseline: float, value: float) -> float | None:
    if baseline == 0:
        return None
    change = (value - baseline) / abs(baseline)
    return change if math.isfinite(change) else None
