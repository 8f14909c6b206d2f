"""Split a series into stretches of equal level: least absolute deviations with a price for each jump.

Solved exactly over a grid of levels by Viterbi (Storath, Weinmann, Unser 2017), O(n · levels). Of a longer
series overlapping blocks are solved side by side, since a night costs numpy's calls rather than its sums.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LEVELS = 80
_CAP = 3.0  # standard deviations; a value further away costs no more, so that no outlier pays for two jumps
_MODES_CAP = 5.0  # where two modes are looked for: a night of the other one costs two switches
_PRICE = 4.0  # of a jump, in standard deviations
_SWITCH = 1.2  # of a change between two modes, which are frequent where there are any
_BLOCK, _MARGIN = 300, 50


def blocks(n: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and stop of each overlapping block, all equally long, and of the part in which its answer
    counts."""
    if n <= _BLOCK + _MARGIN:
        yield 0, n, 0, n
        return
    inner = _BLOCK - 2 * _MARGIN
    for low in range(0, n - _MARGIN, inner):
        high = low + inner if low + inner < n - _MARGIN else n
        start = min(max(low - _MARGIN, 0), n - _BLOCK)
        yield start, start + _BLOCK, low, high


def jumps(values: Array, deviation: float) -> list[int]:
    """Return the indices where the best piecewise constant fit changes its level."""
    parts, tiled, levels = _tiled(values)
    reached, floors = _solve(_costs(tiled, levels, deviation, _CAP)[:, None])
    found = []
    for (start, stop, low, high), costs, floor in zip(parts, reached[:, :, 0], floors, strict=True):
        level = int(costs[-1].argmin())
        for night in range(stop - start - 1, 0, -1):
            if costs[night - 1, level] > floor[night]:
                if low <= start + night < high:
                    found.append(start + night)
                level = int(costs[night - 1].argmin())
    return sorted(found)


def slow_nights(values: Array, gap: float, deviation: float) -> NDArray[np.bool_]:
    """Return which values belong to the upper of two modes `gap` apart, around a level that may jump."""
    parts, tiled, levels = _tiled(values)
    shifted = [_costs(tiled - shift, levels, deviation, _MODES_CAP) for shift in (0.0, gap)]
    reached, floors = _solve(np.stack(shifted, axis=1))
    found = np.empty(len(values), dtype=bool)
    for (start, stop, low, high), costs, floor in zip(parts, reached, floors, strict=True):
        slow = np.zeros(stop - start, dtype=bool)
        mode, level = divmod(int(costs[-1].argmin()), levels.shape[1])
        for night in range(stop - start - 1, 0, -1):
            slow[night] = bool(mode)
            before = costs[night - 1]
            stay, switch = before[mode, level], before[1 - mode, level] + _SWITCH
            if floor[night] < min(stay, switch):
                mode, level = divmod(int(before.argmin()), levels.shape[1])
            elif switch < stay:
                mode = 1 - mode
        slow[0] = bool(mode)
        found[low:high] = slow[low - start : high - start]
    return found


def _tiled(values: Array) -> tuple[list[tuple[int, int, int, int]], Array, Array]:
    """Return the blocks, the values of each, and the levels that it may have."""
    parts = list(blocks(len(values)))
    tiled = np.stack([values[start:stop] for start, stop, _low, _high in parts])
    return parts, tiled, _levels(tiled)


def _solve(costs: Array) -> tuple[Array, Array]:
    """Return what it costs at least to reach each night, mode and level of a block, and to come there by a
    jump. `costs` are those of being there, by block, mode, night and level."""
    count, modes, nights, _levels = costs.shape
    by_night = np.ascontiguousarray(costs.transpose(2, 0, 1, 3))
    if count == 1:  # fewer dimensions are quicker
        by_night = by_night[:, 0] if modes > 1 else by_night[:, 0, 0]
    axes = None if count == 1 else (-2, -1)
    reached = np.empty_like(by_night)
    floors = np.empty((nights, count))
    total = reached[0]
    total[:] = by_night[0]
    for night in range(1, nights):
        floors[night] = floor = np.minimum.reduce(total, axis=axes) + _PRICE
        stay, total = total, reached[night]
        if modes > 1:
            stay = np.minimum(stay, stay[..., ::-1, :] + _SWITCH)
        np.minimum(stay, floor if count == 1 else floor[:, None, None], out=total)
        total += by_night[night]
    return reached.reshape(nights, count, modes, -1).swapaxes(0, 1), floors.T


def _levels(tiled: Array) -> Array:
    """Return the levels that each block (row) may have: its own values, thinned if they are many."""
    ordered = np.sort(tiled, axis=1)
    n = ordered.shape[1]
    if n <= _LEVELS:
        return ordered
    ranks: Array = ordered[:, np.linspace(0, n - 1, _LEVELS).round().astype(int)]
    return ranks


def _costs(tiled: Array, levels: Array, deviation: float, cap: float) -> Array:
    """Return what it costs each value (by block and night) to be at each level of its block."""
    costs: Array = tiled[:, :, None] / deviation - levels[:, None, :] / deviation
    np.abs(costs, out=costs)
    return np.minimum(costs, cap, out=costs)
