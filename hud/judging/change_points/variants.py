"""Series whose values come in variants, such as an autotuner's choices: shifts inside and of their mix."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hud.judging.change_points.segments import Array

_SEEN = 3  # times, to be a known variant
_COVERED = 0.5  # share of values with a known variant; below, the series is taken without variants
_AROUND = 41  # values that each one is compared with
_LEAST_SIDE = 8  # values before and after a change of the mixture
_NORMAL = 4.0  # standard deviations, one in 10,000


@dataclass(frozen=True)
class Variants:
    """The values of known variants: their places, values less what sets a variant apart, and that offset."""

    places: NDArray[np.int64]
    adjusted: Array
    labels: NDArray[np.int64]
    offsets: Array  # by label


def split(values: Array, groups: Sequence[str | None]) -> Variants | None:
    """Return the values by variant, or None if too few have a known one."""
    counts = Counter(groups)
    known = [(place, name) for place, name in enumerate(groups) if name is not None and counts[name] >= _SEEN]
    if len(known) < max(_COVERED * len(values), _LEAST_SIDE):
        return None
    places = np.array([place for place, _name in known])
    _names, labels = np.unique([name for _place, name in known], return_inverse=True)
    offsets = _offsets(values[places], labels)
    return Variants(places, values[places] - offsets[labels], labels, offsets)


def _offsets(values: Array, labels: NDArray[np.int64]) -> Array:
    """Return what sets each variant apart from values around it: least squares, then medians of the rest."""
    columns = np.column_stack([values, np.eye(labels.max() + 1)[labels]])
    columns -= _around(columns).mean(axis=-1)
    offsets, *_ = np.linalg.lstsq(columns[:, 1:], columns[:, 0])
    rest = values - np.median(_around((values - offsets[labels])[:, None]), axis=-1)[:, 0]
    return np.array([np.median(rest[labels == label]) for label in range(len(offsets))])


def _around(columns: Array) -> Array:
    """Return the values around each one, by column."""
    padded = np.pad(columns, [(_AROUND // 2, _AROUND // 2), (0, 0)], mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(padded, _AROUND, axis=0)


def mixture_changes(known: Variants, smallest: float) -> list[int]:
    """Return where variants of other times come more often; renamed variants of equal times are one."""
    kinds = _kinds(known, smallest)
    changes: list[int] = []
    stretches = [(0, len(kinds))]
    while stretches:
        start, stop = stretches.pop()
        if place := _split_of(kinds[start:stop]):
            changes.append(start + place)
            stretches += [(start, start + place), (start + place, stop)]
    return sorted(changes)


def _kinds(known: Variants, smallest: float) -> NDArray[np.int64]:
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
    place = _LEAST_SIDE + int(gain.argmax())
    freedom = max(int(np.count_nonzero(total)) - 1, 1)
    limit = freedom * (1 - 2 / (9 * freedom) + _NORMAL * np.sqrt(2 / (9 * freedom))) ** 3
    return place if gain.max() > limit else 0


def _entropy(counts: Array) -> Array:
    """Return Σ counts · log(share), the log likelihood of draws with these frequencies."""
    total = counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(counts > 0, counts * np.log(counts / total), 0.0).sum(axis=1))
