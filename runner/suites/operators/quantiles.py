"""Quantiles over shapes: each shape once, or as often as models call it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

QUANTILES = (20, 50, 80)  # percent, operatorbench's


def quantiles(values: Sequence[float], weights: Sequence[int] | None = None) -> list[float]:
    """Values at 20, 50 and 80 %. Unweighted: between two values linearly, as numpy and operatorbench.

    Weighted: the smallest value at which that share of all calls is reached.
    """
    if weights is None:
        ordered = sorted(values)
        return [_between(ordered, percent / 100 * (len(ordered) - 1)) for percent in QUANTILES]
    pairs = sorted(zip(values, weights, strict=True))
    reached = list(itertools.accumulate(weight for _value, weight in pairs))
    return [
        next(
            value
            for (value, _weight), sum_ in zip(pairs, reached, strict=True)
            if 100 * sum_ >= percent * reached[-1]
        )
        for percent in QUANTILES
    ]


def _between(ordered: Sequence[float], place: float) -> float:
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
