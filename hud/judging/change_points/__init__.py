"""Change points of a series: where a new level begins.

candidates (least absolute deviations, `segments`) → two modes told apart (`modes`)
→ steps weighed against wandering noise (`evidence`) → changes of a mixture of variants (`variants`)
"""

import math
from collections.abc import Sequence

import numpy as np

from hud.judging.change_points import variants
from hud.judging.change_points.levels import level_changes
from hud.judging.change_points.segments import Array

_FEWEST = 4
_FAR = 1e6  # times the usual size; further out is as far
_APART = 10  # nights: a change of the mixture this near to a step is the same change


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
    known = None
    if groups is not None:
        known = variants.split(scaled, [groups[night] for night in nights])
    if known is None:
        return [nights[place] for place in level_changes(scaled, smallest)]
    shifts = [int(known.places[place]) for place in level_changes(known.adjusted, smallest)]
    mixed = [int(known.places[place]) for place in variants.mixture_changes(known, smallest)]
    mixed = [place for place in mixed if all(abs(place - shift) > _APART for shift in shifts)]
    return [nights[place] for place in sorted(shifts + mixed)]


def _scaled(values: Array) -> Array:
    """Return values with relative differences: logs where all have one sign, else shares of their size."""
    if bool((values > 0).all()) or bool((values < 0).all()):
        return np.log(np.abs(values))
    sizes = np.abs(values[values != 0])
    with np.errstate(over="ignore"):
        shares = values / (float(np.median(sizes)) if len(sizes) else 1.0)
    return np.clip(shares, -_FAR, _FAR)
