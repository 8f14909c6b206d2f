"""Split a series into stretches of equal level: least absolute deviations with a price for each jump.

Solved exactly over a grid of levels by Viterbi (Storath, Weinmann, Unser 2017), O(n · levels). Of a longer
series overlapping blocks are solved side by side, since a night costs numpy's calls rather than its sums.
"""

from collections.abc import Iterator, Sequence

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
    """Yield start and stop of each overlapping block, all equally long, and of where its answer counts."""
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
    is_jump, _modes = _fit(values, (0.0,), deviation, _CAP)
    return np.flatnonzero(is_jump).tolist()


def slow_nights(values: Array, gap: float, deviation: float) -> NDArray[np.bool_]:
    """Return which values belong to the upper of two modes `gap` apart, around a level that may jump."""
    _jumps, modes = _fit(values, (0.0, gap), deviation, _MODES_CAP)
    return np.asarray(modes == 1)


def _fit(
    values: Array, shifts: Sequence[float], deviation: float, cap: float
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return for each night of the best fit whether the level jumps there, and which of one or two modes it
    belongs to, that are these shifts above the level."""
    parts = list(blocks(len(values)))
    tiled = np.stack([values[start:stop] for start, stop, _low, _high in parts])
    ranks = np.linspace(0, tiled.shape[1] - 1, _LEVELS).round().astype(int)
    levels = np.sort(tiled, axis=1)[:, ranks]  # those that a block may have: of its own values
    apart = [np.abs((tiled - shift)[:, :, None] - levels[:, None, :]) for shift in shifts]
    costs = np.minimum(np.stack(apart, axis=1) / deviation, cap)  # of being there
    reached, floors = _solve(costs)
    is_jump, modes = np.zeros(len(values), dtype=bool), np.zeros(len(values), dtype=np.int64)
    for (start, _stop, low, high), totals, floor in zip(parts, reached, floors, strict=True):
        mode, level = divmod(int(totals[-1].argmin()), levels.shape[1])
        own_jumps, own_modes = np.zeros(len(totals), dtype=bool), np.zeros(len(totals), dtype=np.int64)
        for night in range(len(totals) - 1, 0, -1):
            own_modes[night], before = mode, totals[night - 1]
            stay = before[mode, level]
            switch = before[1 - mode, level] + _SWITCH if len(shifts) > 1 else stay
            if floor[night] < min(stay, switch):
                own_jumps[night] = True
                mode, level = divmod(int(before.argmin()), levels.shape[1])
            elif switch < stay:
                mode = 1 - mode
        own_modes[0] = mode
        counts = slice(low - start, high - start)
        is_jump[low:high], modes[low:high] = own_jumps[counts], own_modes[counts]
    return is_jump, modes


def _solve(costs: Array) -> tuple[Array, Array]:
    """Return what it costs at least to reach each night, mode and level of a block, and to come there by a
    jump. `costs` are by block, mode, night and level."""
    by_night = np.ascontiguousarray(costs.transpose(2, 0, 1, 3))
    floors = np.zeros(by_night.shape[:2])
    for night in range(1, len(by_night)):  # each becomes what it costs at least to reach it
        before = by_night[night - 1]
        floors[night] = before.min(axis=(1, 2)) + _PRICE
        stay = np.minimum(before, before[:, ::-1] + _SWITCH) if before.shape[1] > 1 else before
        by_night[night] += np.minimum(stay, floors[night][:, None, None])
    return by_night.swapaxes(0, 1), floors.T
