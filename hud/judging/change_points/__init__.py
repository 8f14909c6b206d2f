"""Change points of a series: where a new level begins.

candidates (least absolute deviations) → two modes told apart → steps weighed against wandering noise
→ changes of a mixture of variants
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hud.judging.change_points.steps import BRIEF, Array, jumps, slow_nights, steps

_FEWEST = 4
_FAR = 1e6  # times the usual size; further out is as far
_CLIP = 3.0  # standard deviations beyond which a value is an outlier
_AROUND = 60  # nights on each side of a brief level
_REACHED = 0.03  # share of them that may reach it
_LEAST_SWITCHES = 5  # of a series with two modes; two bumps have four
_APART = 10  # nights: a change of the mixture this near to a step is the same change
# of series that hop between two modes
_LAGS = range(1, 7)
_SPREAD = 3.8  # of the 80th percentile of differences over the 30th; 3.3 if they are gaussian
_VALLEY = 0.7  # of the heap's height at most
_HEAPS_APART = 3.3  # standard deviations between the heaps of differences
# of series whose values come in variants, such as an autotuner's choices
_SEEN = 3  # times, to be a known variant
_COVERED = 0.5  # share of values with a known variant; below, the series is taken without variants
_WINDOW = 41  # values that each one is compared with
_LEAST_SIDE = 8  # values before and after a change of the mixture
_NORMAL = 4.0  # standard deviations, one in 10,000


def change_points(
    values: Sequence[float | None], *, groups: Sequence[str | None] | None = None, min_relative: float = 0.01
) -> list[int]:
    """Return the index of the first value of each new level, ascending.

    None stands for a night without a value. `groups` names the variant of each value, None where unknown: a
    shift is then found inside variants, and so is a change of how often they come. Steps below
    `min_relative` are none. Raise ValueError for NaN or infinity, or if the lengths differ.
    """
    if groups is not None and len(groups) != len(values):
        raise ValueError("each value needs a group or None")
    nights = [night for night, value in enumerate(values) if value is not None]
    numbers = np.array([value for value in values if value is not None], dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError("change points need finite numbers")
    if len(numbers) < _FEWEST:
        return []
    scaled = _scaled(numbers)
    smallest = math.log1p(min_relative)
    known = None if groups is None else _by_variant(scaled, [groups[night] for night in nights])
    if known is None:
        return [nights[change] for change in _level_changes(scaled, smallest)]
    shifts = [int(known.places[change]) for change in _level_changes(known.adjusted, smallest)]
    mixed = [int(known.places[change]) for change in _mixture_changes(known, smallest)]
    mixed = [change for change in mixed if all(abs(change - shift) > _APART for shift in shifts)]
    return [nights[shift] for shift in sorted(shifts + mixed)]


def _scaled(values: Array) -> Array:
    """Return values with relative differences: logs where all have one sign, else shares of their size."""
    if bool((values > 0).all()) or bool((values < 0).all()):
        # exactly the same in another unit, which else decides between two equally good places
        mantissas, exponents = np.frexp(np.abs(values))
        return np.log(mantissas) + (exponents - int(np.median(exponents))) * math.log(2)
    sizes = np.abs(values[values != 0])
    with np.errstate(over="ignore"):
        shares = values / (float(np.median(sizes)) if len(sizes) else 1.0)
    return np.clip(shares, -_FAR, _FAR)


def _level_changes(values: Array, smallest: float) -> list[int]:
    """Return where the level of scaled values changes by at least `smallest`."""
    if float(np.ptp(values)) < smallest:
        return []
    raw = values = values - np.median(values)
    least = max(smallest / 20, 0.3 * _quantum(values))
    gap = _gap(values, least)
    if gap is not None:
        slow = slow_nights(values, *gap)
        if np.count_nonzero(np.diff(slow)) >= _LEAST_SWITCHES:
            values = values - gap[0] * slow
    deviation = _short_deviation(values, least)
    candidates = jumps(values, deviation)
    changes = _borne_out(values, candidates, deviation, least, smallest)
    size = _gap_of_jumps(values, candidates, deviation) if changes else None
    if size is not None:
        # modes that last for several nights look like steps; without them fewer remain
        slow = slow_nights(values, size, deviation)
        other = values - size * slow
        own = _short_deviation(other, least)
        fewer = jumps(other, own)
        if np.count_nonzero(np.diff(slow)) > _LEAST_SWITCHES and len(fewer) <= len(candidates) / 2:
            without = _borne_out(other, fewer, own, least, smallest)
            if len(without) <= len(changes):
                changes = without
    return _without_chance_runs(raw, changes)


def _borne_out(
    values: Array, candidates: Sequence[int], deviation: float, least: float, smallest: float
) -> list[int]:
    """Return the candidates that are real and large enough, where they explain most."""
    if not candidates:
        return []
    clipped = _clipped(values, candidates, deviation)
    real = steps(clipped, candidates, least)
    while real:
        sizes = np.abs(np.diff([part.mean() for part in np.split(clipped, real)]))
        weakest = int(np.argmin(sizes))
        if sizes[weakest] >= smallest:
            break
        del real[weakest]
    return real


def _without_chance_runs(values: Array, starts: list[int]) -> list[int]:
    """Return the steps without brief levels that single nights on both sides reach as well: a run of one of
    several variants, not a level."""
    edges = [0, *starts, len(values)]
    dropped: set[int] = set()
    for low, high in pairwise(edges):
        if high - low >= BRIEF:
            continue
        middle = float(np.median(values[low:high]))
        sides = [values[max(low - _AROUND, 0) : low], values[high : high + _AROUND]]
        shares = []
        for side in sides:
            if len(side):
                beyond = (side >= middle) if middle > np.median(side) else (side <= middle)
                shares.append(float(beyond.mean()))
        if min(shares, default=0.0) > _REACHED:
            dropped |= {low, high}
    return [start for start in starts if start not in dropped]


def _short_deviation(values: Array, least: float) -> float:
    """Return the standard deviation between neighbours, from the 68th percentile of absolute differences."""
    differences = np.sort(np.abs(np.diff(values)))
    return max(float(differences[int(0.683 * (len(differences) - 1))]) / math.sqrt(2), least)


def _quantum(values: Array) -> float:
    """Return the distance of neighbouring values of a coarse clock, 0 if most values are distinct or stay."""
    distinct = np.unique(values)
    hops = np.count_nonzero(np.diff(values))
    coarse = 1 < len(distinct) < len(values) / 2 and hops > max(len(values) / 10, 3)
    return float(np.median(np.diff(distinct))) if coarse else 0.0


def _clipped(values: Array, candidates: Sequence[int], deviation: float) -> Array:
    """Limit outliers: values far from both the median of their segment and that of the nights around."""
    segment = np.concatenate([np.full(len(part), np.median(part)) for part in np.split(values, candidates)])
    around = segment
    if len(values) > 9:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, 4, mode="reflect"), 9)
        around = np.median(windows, axis=1)
    reach = _CLIP * deviation
    return np.clip(values, np.minimum(segment, around) - reach, np.maximum(segment, around) + reach)


# ---- two modes: clock states, or two choices of an autotuner that nobody recorded


def _gap(values: Array, least: float) -> tuple[float, float] | None:
    """Return how far apart the two modes are and the deviation inside one, or None if there are not two.

    Differences between near nights then fall into two narrow heaps, around nothing and around the gap. Sizes
    of outliers are not heaped, and a step puts few differences into the second heap.
    """
    lagged = [values[lag:] - values[:-lag] for lag in _LAGS if lag < len(values)]
    differences = np.sort(np.abs(np.concatenate(lagged)))
    # start from half of what one mode alone would show, and widen to what belongs to it
    small = max(float(differences[int(0.3 * len(differences))]) / 0.545 / 2, least)
    for _ in range(6):
        inside = differences[: np.searchsorted(differences, _HEAPS_APART * small)]
        small = max(float(np.sqrt(np.mean(inside**2))) if len(inside) else 0.0, np.sqrt(2) * least)
    far = differences[np.searchsorted(differences, _HEAPS_APART * small) :]
    if len(far) >= 0.12 * len(differences):
        middle = float(np.median(far))
        if float(np.median(np.abs(far - middle))) <= 1.1 * small:
            return middle, small / np.sqrt(2)
    return _overlapping(differences, least)


def _overlapping(differences: Array, least: float) -> tuple[float, float] | None:
    """Return the gap and the deviation of heaps that overlap: of the likeliest mixture (by expectation
    maximisation), if there are clearly fewer differences of half the gap than of the gap."""
    if differences[int(0.8 * len(differences))] < _SPREAD * differences[int(0.3 * len(differences))]:
        return None  # as of one mode
    thinned = differences[:: max(1, len(differences) // 300)]
    middle, small, share = float(np.quantile(thinned, 0.8)), float(np.quantile(thinned, 0.25)), 0.4
    for _ in range(8):
        small = max(small, np.sqrt(2) * least)
        odds = (thinned * middle - middle**2 / 2) / small**2 + math.log(share / 2 / (1 - share))
        far = 1 / (1 + np.exp(-np.clip(odds, -50, 50)))
        share = float(np.clip(far.mean(), 0.02, 0.98))
        middle = float((far * thinned).sum() / far.sum())
        small = math.sqrt(float(((1 - far) * thinned**2 + far * (thinned - middle) ** 2).mean()))
    low, valley_end, heap, end = np.searchsorted(differences, np.array([0.35, 0.65, 0.85, 1.15]) * middle)
    if (
        not 0.12 <= share <= 0.7
        or valley_end - low > _VALLEY * (end - heap)
        or middle < max(3 * small, 6 * least)
    ):
        return None
    return middle, small / math.sqrt(2)


def _gap_of_jumps(values: Array, jumps: Sequence[int], deviation: float) -> float | None:
    """Return the gap of two modes that each last for several nights: jumps of one size, to and fro."""
    if len(jumps) < 6:
        return None
    sizes = np.diff([np.median(part) for part in np.split(values, jumps)])
    middle = float(np.median(np.abs(sizes)))
    to_and_fro = float(np.mean(sizes[1:] * sizes[:-1] < 0)) >= 0.75
    alike = float(np.median(np.abs(np.abs(sizes) - middle))) <= 0.25 * middle
    return middle if to_and_fro and alike and middle > 2.5 * deviation else None


# ---- variants, such as an autotuner's choices: shifts inside and of their mix


@dataclass(frozen=True)
class _Variants:
    """The values of known variants: their places, values less what sets a variant apart, and that offset."""

    places: NDArray[np.int64]
    adjusted: Array
    labels: NDArray[np.int64]
    offsets: Array  # by label


def _by_variant(values: Array, groups: Sequence[str | None]) -> _Variants | None:
    """Return the values by variant, or None if too few have a known one."""
    counts = Counter(groups)
    known = [(index, name) for index, name in enumerate(groups) if name is not None and counts[name] >= _SEEN]
    if len(known) < max(_COVERED * len(values), _LEAST_SIDE):
        return None
    places = np.array([index for index, _name in known])
    _names, labels = np.unique([name for _place, name in known], return_inverse=True)
    offsets = _offsets(values[places], labels)
    return _Variants(places, values[places] - offsets[labels], labels, offsets)


def _offsets(values: Array, labels: NDArray[np.int64]) -> Array:
    """Return what sets each variant apart from values around it: least squares, then medians of the rest."""
    columns = np.column_stack([values, np.eye(labels.max() + 1)[labels]])
    columns -= _around(columns).mean(axis=-1)
    offsets, *_ = np.linalg.lstsq(columns[:, 1:], columns[:, 0])
    rest = values - np.median(_around((values - offsets[labels])[:, None]), axis=-1)[:, 0]
    return np.array([np.median(rest[labels == label]) for label in range(len(offsets))])


def _around(columns: Array) -> Array:
    padded = np.pad(columns, [(_WINDOW // 2, _WINDOW // 2), (0, 0)], mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(padded, _WINDOW, axis=0)


def _mixture_changes(known: _Variants, smallest: float) -> list[int]:
    """Return where variants of other times come more often; renamed variants of equal times are one."""
    kinds = _kinds(known, smallest)
    changes: list[int] = []
    stretches = [(0, len(kinds))]
    while stretches:
        start, stop = stretches.pop()
        if split := _split_of(kinds[start:stop]):
            changes.append(start + split)
            stretches += [(start, start + split), (start + split, stop)]
    return sorted(changes)


def _kinds(known: _Variants, smallest: float) -> NDArray[np.int64]:
    """Return a number for each value, the same for variants that take equally long."""
    deviation = float(np.median(np.abs(known.adjusted - np.median(known.adjusted)))) * 1.4826
    order = np.argsort(known.offsets)
    error = 1.25 * deviation / np.sqrt(np.bincount(known.labels)[order])
    apart = np.diff(known.offsets[order]) > np.maximum(3.5 * np.hypot(error[1:], error[:-1]), smallest / 2)
    kinds = np.concatenate([[0], np.cumsum(apart)])
    return np.asarray(kinds[np.argsort(order)][known.labels])


def _split_of(kinds: NDArray[np.int64]) -> int:
    """Return where the frequencies of the kinds change most, 0 if by no more than chance."""
    if len(kinds) < 2 * _LEAST_SIDE:
        return 0
    counts = np.cumsum(np.eye(kinds.max() + 1)[kinds], axis=0)
    before, total = counts[_LEAST_SIDE - 1 : -_LEAST_SIDE], counts[-1]
    gain = 2 * (_entropy(before) + _entropy(total - before) - _entropy(total[None]))
    split = _LEAST_SIDE + int(gain.argmax())
    freedom = max(int(np.count_nonzero(total)) - 1, 1)
    limit = freedom * (1 - 2 / (9 * freedom) + _NORMAL * np.sqrt(2 / (9 * freedom))) ** 3
    return split if gain.max() > limit else 0


def _entropy(counts: Array) -> Array:
    """Return Σ counts · log(share), the log likelihood of draws with these frequencies."""
    total = counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(counts > 0, counts * np.log(counts / total), 0.0).sum(axis=1))
