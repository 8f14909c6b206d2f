"""Series that hop between two modes: clock states, or two choices of an autotuner that nobody recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hud.judging.change_points.segments import Array

_LAGS = range(1, 7)
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
        return None
    middle = float(np.median(far))
    if float(np.median(np.abs(far - middle))) > 1.1 * small:
        return None
    return middle, small / np.sqrt(2)


def gap_of_jumps(values: Array, jumps: Sequence[int], deviation: float) -> float | None:
    """Return the gap of two modes that each last for several nights: jumps of one size, to and fro."""
    if len(jumps) < 6:
        return None
    sizes = np.diff([np.median(part) for part in np.split(values, jumps)])
    middle = float(np.median(np.abs(sizes)))
    to_and_fro = float(np.mean(sizes[1:] * sizes[:-1] < 0)) >= 0.75
    alike = float(np.median(np.abs(np.abs(sizes) - middle))) <= 0.25 * middle
    return middle if to_and_fro and alike and middle > 2.5 * deviation else None
