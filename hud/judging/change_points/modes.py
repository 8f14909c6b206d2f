"""Series that hop between two modes: clock states, or two choices of an autotuner that nobody recorded."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hud.judging.change_points.segments import Array

_LAGS = range(1, 7)
_SPREAD = 3.8  # of the 80th percentile of differences over the 30th; 3.3 if they are gaussian
_VALLEY = 0.7  # of the heap's height at most
_NEAR = 20  # nights by which a step may be off
_APART = 3.3  # standard deviations between the heaps of differences


def gap(values: Array, least: float) -> tuple[float, float] | None:
    """Return how far apart the two modes are and the deviation inside one, or None if there are not two.

    Differences between near nights then fall into two narrow heaps, around nothing and around the gap. Sizes
    of outliers are not heaped, and a step puts few differences into the second heap.
    """
    lagged = [values[lag:] - values[:-lag] for lag in _LAGS if lag < len(values)]
    differences = np.sort(np.abs(np.concatenate(lagged)))
    # start from half of what one mode alone would show, and widen to what belongs to it
    small = max(float(differences[int(0.3 * len(differences))]) / 0.545 / 2, least)
    for _ in range(6):
        inside = differences[: np.searchsorted(differences, _APART * small)]
        small = max(float(np.sqrt(np.mean(inside**2))) if len(inside) else 0.0, np.sqrt(2) * least)
    far = differences[np.searchsorted(differences, _APART * small) :]
    if len(far) < 0.12 * len(differences):
        return _overlapping(differences, least)
    middle = float(np.median(far))
    if float(np.median(np.abs(far - middle))) > 1.1 * small:
        return _overlapping(differences, least)
    return middle, small / np.sqrt(2)


def relocated(values: Array, found: Sequence[int], gap: float, slow: NDArray[np.bool_]) -> list[int]:
    """Return each step at the place near it where it is likeliest, if modes come and go as `slow` says."""
    n, places = len(values), list(found)
    level = values - gap * slow
    share = float(np.clip(slow.mean(), 0.02, 0.98))
    rate = max(float(np.mean(slow[1:] != slow[:-1])), 0.02) / 2
    switch = np.log(
        [[max(1 - rate / (1 - share), 0.02), rate / (1 - share)], [rate / share, max(1 - rate / share, 0.02)]]
    )
    for index, place in enumerate(places):
        low = places[index - 1] + 2 if index else 1
        high = places[index + 1] - 2 if index + 1 < len(places) else n - 1
        first, last = max(low - 1, place - _NEAR), min(high + 1, place + _NEAR)
        if last - first < 4 or not low < place < high:
            continue
        before, after = level[max(low - 1, 0) : place], level[place : high + 1]
        own = np.concatenate([before - np.median(before), after - np.median(after)])
        deviation = max(1.4826 * float(np.median(np.abs(own))), gap / 20)
        scores = [
            np.maximum(
                -(((values[first:last, None] - float(np.median(part)) - [0.0, gap]) / deviation) ** 2) / 2,
                -12.0,
            )
            for part in (before, after)
        ]
        left = _likelihoods(scores[0], switch)
        right = _likelihoods(scores[1][::-1], switch.T)[::-1]
        joint = np.logaddexp.reduce(left[:-1, :, None] + switch + right[1:, None, :], axis=(1, 2))
        places[index] = first + 1 + int(joint.argmax())
    return places


def _likelihoods(scores: Array, switch: Array) -> Array:
    """Return the log likelihood of all values up to each one, by its mode."""
    reached = np.empty_like(scores)
    reached[0] = scores[0]
    for night in range(1, len(scores)):
        reached[night] = np.logaddexp(*(reached[night - 1][:, None] + switch)) + scores[night]
    return reached


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


def gap_of_jumps(values: Array, jumps: Sequence[int], deviation: float) -> float | None:
    """Return the gap of two modes that each last for several nights: jumps of one size, to and fro."""
    if len(jumps) < 6:
        return None
    sizes = np.diff([np.median(part) for part in np.split(values, jumps)])
    middle = float(np.median(np.abs(sizes)))
    to_and_fro = float(np.mean(sizes[1:] * sizes[:-1] < 0)) >= 0.75
    alike = float(np.median(np.abs(np.abs(sizes) - middle))) <= 0.25 * middle
    return middle if to_and_fro and alike and middle > 2.5 * deviation else None
