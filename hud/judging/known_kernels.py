"""Same-choice time: a compilation's kernels against what the same choices took before (measuring rule C4).

A model's total moves with each draw of the autotuner. Each kernel is therefore compared with the median of
its own (slot, choice); the sum over the known ones is steady to a fraction of a percent.

A kernel is an integer id for (slot, choice); times are microseconds of device time in one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hud.judging.choices import Drawn
from runner.schema.statistics import MAD_TO_SD, median

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
LEAST_COVERAGE = 0.7
_NOISE = 0.005  # of a known kernel, at least
_CLOCK_US = 0.3  # of each call
_TOGETHER = 0.002  # by which all kernels of a night move together: the card's clock and temperature
_CERTAIN = 8  # values from which a kernel's own scatter is taken
_FLOOR = 0.01
_MOST_SEEN = 20  # compilations that make a median: it stays when the code gets slower later


@dataclass(frozen=True)
class KernelMedians:
    """The history of each kernel: its ids ascending, median, how often seen, and standard deviation of one
    value relative to the median."""

    ids: Ids
    medians_us: Array
    counts: Ids
    noise: Array

    @classmethod
    def of(cls, ids: ArrayLike, times_us: ArrayLike, calls: ArrayLike = 1.0) -> KernelMedians:
        """Return the medians of all earlier compilations' kernels, given as equally long columns."""
        keys = np.asarray(ids, dtype=np.int64)
        times = np.asarray(times_us, dtype=np.float64)
        each = np.broadcast_to(np.asarray(calls, dtype=np.float64), times.shape)
        if not (np.isfinite(times).all() and (times > 0).all()):
            raise ValueError("a kernel's time is a positive number")
        order = np.lexsort((times, keys))
        keys, times, each = keys[order], times[order], each[order]
        unique, starts, counts = np.unique(keys, return_index=True, return_counts=True)
        medians = _medians(times, starts, counts)
        off = np.abs(times - np.repeat(medians, counts))
        order = np.lexsort((off, keys))
        own = MAD_TO_SD * _medians(off[order], starts, counts) / medians
        least = np.maximum(_NOISE, _CLOCK_US * np.sqrt(each[starts]) / medians)
        return cls(unique, medians, counts, np.where(counts >= _CERTAIN, np.maximum(own, _NOISE), least))


@dataclass(frozen=True)
class SameChoice:
    """The time of a point's compilations by their known kernels. `ratio` is the median over compilations of
    observed ÷ expected; `coverage` the share of device time in known kernels, the median too; `noise` the
    relative standard deviation of `ratio`. Without a known kernel `ratio` is None."""

    ratio: float | None
    ratios: tuple[float | None, ...]
    coverages: tuple[float, ...]  # of each compilation
    coverage: float
    noise: float
    unknown: tuple[int, ...]  # ids never seen before


def same_choice(
    history: KernelMedians,
    ids: ArrayLike,
    times_us: ArrayLike,
    compilation: ArrayLike | None = None,
    *,
    together: float = _TOGETHER,
) -> SameChoice:
    """Compare the kernels of one point with the history. `compilation` numbers each row's compilation from 0;
    without it all are of one. `together` is the noise that all kernels of a night share. Raise ValueError
    for times that are not positive."""
    keys = np.asarray(ids, dtype=np.int64)
    times = np.asarray(times_us, dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("a kernel's time is a positive number")
    which = np.zeros(len(keys), dtype=np.int64) if compilation is None else np.asarray(compilation, np.int64)
    if not len(keys):
        return SameChoice(None, (), (), 0.0, math.inf, ())
    count = int(which.max()) + 1
    place = np.minimum(np.searchsorted(history.ids, keys), max(len(history.ids) - 1, 0))
    known = history.ids[place] == keys if len(history.ids) else np.zeros(len(keys), dtype=bool)
    rows, group = place[known], which[known]
    expected = np.bincount(group, history.medians_us[rows], count)
    observed = np.bincount(group, times[known], count)
    total = np.bincount(which, times, count)
    # a median of few values is itself uncertain
    each = history.noise[rows] * np.sqrt(1 + np.pi / 2 / history.counts[rows]) * history.medians_us[rows]
    variance = np.bincount(group, each**2, count)
    seen = expected > 0
    unknown = tuple(int(key) for key in np.unique(keys[~known]))
    covered = np.divide(observed, total, out=np.zeros(count), where=total > 0)
    coverages, coverage = tuple(map(float, covered)), float(np.median(covered[total > 0]))
    if not seen.any():
        return SameChoice(None, (None,) * count, coverages, coverage, math.inf, unknown)
    ratios = observed[seen] / expected[seen]
    own = float(np.median(np.sqrt(variance[seen]) / expected[seen])) / math.sqrt(len(ratios))
    listed = np.full(count, np.nan)
    listed[seen] = ratios
    return SameChoice(
        median(ratios.tolist()),
        tuple(None if math.isnan(ratio) else float(ratio) for ratio in listed),
        coverages,
        coverage,
        math.hypot(own, together),
        unknown,
    )


def same_choice_ratios(history: Iterable[Drawn], own: Sequence[Drawn]) -> list[float | None]:
    """Return for each of these compilations the time of its known kernels ÷ the sum of their medians; None
    where they take less than 70 % of its time. `history` is oldest first; a choice's median is that of the
    first 20 compilations with it."""
    numbers: dict[tuple[str, str], int] = {}
    seen: dict[int, list[float]] = {}
    for drawn in history:
        for slot, choice, time_us in drawn:
            times = seen.setdefault(numbers.setdefault((slot, choice), len(numbers)), [])
            if len(times) < _MOST_SEEN and time_us > 0:
                times.append(time_us)
    before = KernelMedians.of(
        [number for number, times in seen.items() for _time in times],
        [time_us for times in seen.values() for time_us in times],
    )
    rows = [
        (numbers.get((slot, choice), -1), time_us, place)
        for place, drawn in enumerate(own)
        for slot, choice, time_us in drawn
        if time_us > 0
    ]
    found = same_choice(before, *zip(*rows, strict=True)) if rows else same_choice(before, [], [])
    ratios = [
        ratio if coverage >= LEAST_COVERAGE else None
        for ratio, coverage in zip(found.ratios, found.coverages, strict=True)
    ]
    return ratios + [None] * (len(own) - len(ratios))  # the last ones have no kernel with a time


def _medians(ordered: Array, starts: Ids, counts: Ids) -> Array:
    """Return the median of each run of sorted values."""
    return np.asarray((ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2)
