"""Decide whether a new value is better or worse than its series was. Numbers only.

A change counts when it is past the metric's relative floor and its absolute floor and the noise of its
own series, all three. Noise comes from the history's first differences, so that slow drift and accepted
steps do not count as noise; a short history borrows a prior. The steps follow the project's rules for
judging: log space for positive values, any change of a deterministic metric counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runner.schema.statistics import MAD_TO_SD, median

Word = Literal["improved", "unchanged", "regressed", "inconclusive", "failed", "new"]
_SHORT = 8  # fewer earlier values than this tell little about their noise
_BASELINE = 16  # the level is the median of this many latest values
_NOISE_WINDOW = 100


@dataclass(frozen=True)
class Rule:
    """The rule by which a metric is judged. A change must exceed the floors. `prior_noise` is the assumed
    relative standard deviation between processes of a series with little history."""

    direction: Literal["up", "down", "none"] = "down"
    kind: Literal["timing", "deterministic", "status"] = "timing"
    relative_floor: float = 0.05
    absolute_floor: float = 0.0
    noise_factor: float = 3.5
    prior_noise: float = 0.015


@dataclass(frozen=True)
class Verdict:
    """The result of judging a run. `change` is relative to `baseline`, with the sign of the value's movement;
    `factor` is the change in units of the noise of one new value against its baseline."""

    verdict: Word
    change: float | None = None
    noise: float | None = None
    factor: float | None = None
    baseline: float | None = None
    baseline_n: int = 0
    suspect: bool = False  # far enough from the level that a repeat should look
    reason: str = ""


def judge(history: Sequence[float], samples: Sequence[float], rule: Rule) -> Verdict:
    """Judge a run's samples against `history`: earlier medians of the same environment class, oldest first.

    Without samples the run failed; without history the series is new. Raise ValueError for NaN or infinity.
    """
    if not all(map(math.isfinite, history)) or not all(map(math.isfinite, samples)):
        raise ValueError("a verdict needs finite numbers")
    if not samples:
        return Verdict("failed", baseline_n=len(history))
    if not history:
        return Verdict("new")
    value = median(samples)
    if rule.kind == "deterministic":
        return _judge_exact(history, value, rule)
    recent = history[-_BASELINE:]
    baseline = median(recent)
    step = _difference(baseline, value)
    noise = series_noise(history, rule.prior_noise)
    factor = abs(step) / (noise * math.sqrt(1 + 1 / len(recent)))
    change = _relative(baseline, value)
    past_floor = abs(step) > math.log1p(rule.relative_floor) and abs(value - baseline) > rule.absolute_floor
    if not past_floor:
        word: Word = "unchanged"
    elif factor <= rule.noise_factor:
        word = "inconclusive"
    else:
        word = _word(value - baseline, rule)
    return Verdict(word, change, noise, factor, baseline, len(history))


def series_noise(history: Sequence[float], prior: float) -> float:
    """Return the relative standard deviation of a value around its level, from first log differences.

    Differences of independent values have √2 of their deviation; a positive lag-1 correlation of the
    values makes differences too small, so it is put back. A short history leans on the prior.
    """
    values = np.asarray(history[-_NOISE_WINDOW:], dtype=np.float64)
    if values.size < 3:
        return prior
    if bool(np.all(values > 0)):
        logs = np.log(values)
    else:
        scale = float(np.max(np.abs(values))) or 1.0
        logs = values / scale
    differences = np.diff(logs)
    own = float(MAD_TO_SD * np.median(np.abs(differences))) / math.sqrt(2)
    own /= math.sqrt(1 - min(_lag_1(logs), 0.8))
    if values.size < _SHORT:
        weight = (values.size - 1) / (_SHORT - 1)
        own = math.sqrt(weight * own**2 + (1 - weight) * prior**2)
    return max(own, prior / 10)  # equal values only show a coarse clock


def _lag_1(logs: NDArray[np.float64]) -> float:
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
    """Judge a count, such as graph breaks or kernels: any change from the latest value counts."""
    baseline = history[-1]
    word: Word = "unchanged" if value == baseline else _word(value - baseline, rule)
    return Verdict(word, _relative(baseline, value), 0.0, None, baseline, len(history))


def _word(difference: float, rule: Rule) -> Word:
    if rule.direction == "none":
        return "inconclusive"
    return "improved" if (difference > 0) == (rule.direction == "up") else "regressed"


def _difference(baseline: float, value: float) -> float:
    """Return the log ratio of positive values, else the difference relative to the larger magnitude."""
    if baseline > 0 and value > 0:
        return math.log(value) - math.log(baseline)
    scale = max(abs(baseline), abs(value))
    return (value - baseline) / scale if scale else 0.0


def _relative(baseline: float, value: float) -> float | None:
    if baseline == 0:
        return None
    change = (value - baseline) / abs(baseline)
    return change if math.isfinite(change) else None
