"""Slow drift: a level that moves by less than any step a night, and by percents in a season."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hud.judging.change_points import change_points
from hud.judging.verdict import series_noise

_WINDOW = 10  # nights whose median is compared
_EARLIER = 20  # nights of the median that it is compared with
_BACK = (45, 90)
_FEWEST = 60
_FLOOR = 0.03
_CERTAIN = 3.5  # standard errors
_WITHIN = 0.5  # of the change of a drift, that happens inside levels


def drift(values: Sequence[float]) -> tuple[float, int] | None:
    """Return the relative change of the median of the newest ten nights against 45 or 90 nights ago, and that
    number of nights; None if it is not sure.

    `values` is oldest first; at least 60 are needed. Steps of at least 3 % are change points, not drift: they
    are taken out first.
    """
    recent = values[-(max(_BACK) + _EARLIER) :]
    if len(values) < _FEWEST or not all(value > 0 for value in recent):
        return None
    flat = np.log(recent)
    for step in change_points(recent, min_relative=_FLOOR):
        before, after = flat[max(0, step - _WINDOW) : step], flat[step : step + _WINDOW]
        flat[step:] -= np.median(after) - np.median(before)
    now = float(np.median(flat[-_WINDOW:]))
    # the scatter of two medians, each of ten nights
    error = series_noise(np.exp(flat).tolist(), 0.01) * math.sqrt(2 * math.pi / 2 / _WINDOW)
    found: tuple[float, int] | None = None
    for back in _BACK:
        earlier = flat[-_EARLIER - back : -back]
        if len(earlier) < _WINDOW:
            continue
        moved = now - float(np.median(earlier))
        sure = abs(moved) > max(math.log1p(_FLOOR), _CERTAIN * error)
        if sure and (found is None or abs(math.expm1(moved)) > abs(found[0])):
            found = math.expm1(moved), back
    return found


def climbs(values: Sequence[float]) -> bool:
    """Return whether positive values move within their levels rather than from one level to the next, as a
    drift does and a step does not."""
    logs = np.log([value for value in values if value > 0])
    bounds = [0, *change_points(np.exp(logs).tolist()), len(logs)]
    parts = [logs[first:end] for first, end in pairwise(bounds)]
    total = float(np.median(parts[-1]) - np.median(parts[0]))
    within = sum(
        float(np.polyfit(range(len(part)), part, 1)[0]) * (len(part) - 1) for part in parts if len(part) > 1
    )
    return len(parts) == 1 or (total != 0 and within / total >= _WITHIN)
