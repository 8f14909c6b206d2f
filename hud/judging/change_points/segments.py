"""Split a series into stretches of equal level: least absolute deviations with a price for each jump.

Solved exactly over a grid of levels by Viterbi (Storath, Weinmann, Unser 2017), O(n · levels).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LEVELS = 120
_CAP = 3.0  # standard deviations; a value further away costs no more, so that no outlier pays for two jumps
_PRICE = 4.0  # of a jump, in standard deviations
_SWITCH = 1.2  # of a change between two modes, which are frequent where there are any


def jumps(values: Array, deviation: float) -> list[int]:
    """Return the indices where the best piecewise constant fit changes its level."""
    costs = _costs(values, _levels(values), deviation)
    reached = np.empty_like(costs)
    floors = np.empty(len(costs))
    total = reached[0]
    total[:] = costs[0]
    for night in range(1, len(costs)):
        floors[night] = floor = np.minimum.reduce(total, axis=None) + _PRICE
        total = np.minimum(total, floor, out=reached[night])
        total += costs[night]
    found = []
    level = int(total.argmin())
    for night in range(len(costs) - 1, 0, -1):
        if reached[night - 1, level] > floors[night]:
            found.append(night)
            level = int(reached[night - 1].argmin())
    return found[::-1]


def slow_nights(values: Array, gap: float, deviation: float) -> NDArray[np.bool_]:
    """Return which values belong to the upper of two modes `gap` apart, around a level that may jump."""
    levels = _levels(values)
    costs = np.stack([_costs(values - shift, levels, deviation) for shift in (0.0, gap)], axis=1)
    reached = np.empty_like(costs)
    floors = np.empty(len(costs))
    total = reached[0]
    total[:] = costs[0]
    for night in range(1, len(costs)):
        floors[night] = floor = np.minimum.reduce(total, axis=None) + _PRICE
        previous, total = total, reached[night]
        np.minimum(previous, previous[::-1] + _SWITCH, out=total)
        np.minimum(total, floor, out=total)
        total += costs[night]
    slow = np.zeros(len(costs), dtype=bool)
    mode, level = np.unravel_index(int(total.argmin()), total.shape)
    for night in range(len(costs) - 1, 0, -1):
        slow[night] = bool(mode)
        before = reached[night - 1]
        stay, switch = before[mode, level], before[1 - mode, level] + _SWITCH
        if floors[night] < min(stay, switch):
            mode, level = np.unravel_index(int(before.argmin()), before.shape)
        elif switch < stay:
            mode = 1 - mode
    slow[0] = bool(mode)
    return slow


def _levels(values: Array) -> Array:
    levels = np.unique(values)
    if levels.size > _LEVELS:
        levels = np.unique(np.quantile(values, np.linspace(0, 1, _LEVELS)))
    return levels


def _costs(values: Array, levels: Array, deviation: float) -> Array:
    """Return what it costs each value (row) to be at each level (column)."""
    costs = values[:, None] / deviation - levels / deviation
    np.abs(costs, out=costs)
    return np.minimum(costs, _CAP, out=costs)
