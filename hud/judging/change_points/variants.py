"""Series whose values come in variants, such as an autotuner's choices: shifts inside and of their mix."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hud.judging.change_points.segments import Array

_SEEN = 3  # times, to be a known variant
_COVERED = 0.5  # share of values with a known variant; below, the series is taken without variants
_ROUGH = 25.0  # F ratio of a step that is taken into account when variants are compared
_MOST_STEPS = 20
_FREQUENT = 6
_LEAST_SIDE = 8
_NORMAL = 4.0  # standard deviations, one in 10,000


@dataclass(frozen=True)
class Variants:
    """The values of known variants: their places, values less what sets the variant apart, that offset."""

    places: NDArray[np.int64]
    adjusted: Array
    labels: NDArray[np.int64]
    offsets: Array  # by label


def split(values: Array, groups: Sequence[str | None]) -> Variants | None:
    """Return the values by variant, or None if too few have a known one."""
    names = {name: code for code, name in enumerate(dict.fromkeys(groups))}
    codes = np.array([names[name] for name in groups])
    counts = np.bincount(codes)
    if None in names:
        counts[names[None]] = 0
    places = np.flatnonzero(counts[codes] >= _SEEN)
    if len(places) < max(_COVERED * len(values), 8):
        return None
    _names, labels = np.unique(codes[places], return_inverse=True)
    offsets = _offsets(values[places], labels)
    return Variants(places, values[places] - offsets[labels], labels, offsets)


def _offsets(values: Array, labels: NDArray[np.int64]) -> Array:
    """Return the level of each variant beside the others, fitted together with the largest steps."""
    n, count = len(values), int(labels.max()) + 1
    sizes = np.bincount(labels, minlength=count)
    after = np.arange(n)

    member = np.zeros((n, count))
    member[after, labels] = 1.0
    means = (member / sizes).T

    def less_variant(series: Array) -> Array:
        return np.asarray(series - (means @ series)[labels])

    # of a long series, not every night: this is only for comparing variants
    where = np.arange(2, n - 1, max(1, n // 250))
    matrix = less_variant((after[:, None] >= where).astype(float))
    rest = less_variant(values)
    taken: list[int] = []
    for _ in range(_MOST_STEPS):
        power = (matrix**2).sum(axis=0)
        explained = np.where(power > 1e-6 * n, (rest @ matrix) ** 2 / np.maximum(power, 1e-12), 0.0)
        best = int(explained.argmax())
        left = float(rest @ rest) - float(explained[best])
        if explained[best] * n <= _ROUGH * max(left, 1e-12):
            break
        unit = matrix[:, best] / np.sqrt(power[best])
        rest = rest - unit * (unit @ rest)
        matrix = matrix - np.outer(unit, unit @ matrix)
        taken.append(int(where[best]))
    if not taken:
        return np.array([np.median(values[labels == label]) for label in range(count)])
    steps = np.array([after >= place for place in taken], dtype=float).T
    size, *_ = np.linalg.lstsq(less_variant(steps), less_variant(values), rcond=None)
    flat = values - steps @ size
    return np.array([np.median(flat[labels == label]) for label in range(count)])


def mixture_changes(known: Variants, smallest: float) -> list[int]:
    """Return where variants of other times come more often; renamed variants of equal times are one."""
    kinds = _kinds(known, smallest)
    count = int(kinds.max()) + 1
    if count < 2:
        return []
    table = np.cumsum(np.eye(count)[kinds], axis=0)
    found: list[int] = []
    stretches = [(0, len(kinds))]
    while stretches:
        start, stop = stretches.pop()
        place = _split_of(table, kinds, start, stop)
        if place is not None:
            found.append(place)
            stretches += [(start, place), (place, stop)]
    return sorted(found)


def _kinds(known: Variants, smallest: float) -> NDArray[np.int64]:
    """Return a number for each value, the same for variants that take equally long; rare ones join others."""
    deviation = float(np.median(np.abs(known.adjusted - np.median(known.adjusted)))) * 1.4826
    order = np.argsort(known.offsets)
    error = 1.25 * deviation / np.sqrt(np.bincount(known.labels)[order])
    apart = np.diff(known.offsets[order]) > np.maximum(3.5 * np.hypot(error[1:], error[:-1]), smallest / 3)
    kind_of = np.empty(len(order), dtype=np.int64)
    kind_of[order] = np.concatenate([[0], np.cumsum(apart)])
    kinds = kind_of[known.labels]
    counts = np.bincount(kinds)
    new = np.maximum(np.cumsum(counts >= _FREQUENT) - 1, 0)
    return np.asarray(new[kinds])


def _split_of(table: Array, kinds: NDArray[np.int64], start: int, stop: int) -> int | None:
    """Return where frequencies change most between `start` and `stop`, None if by no more than chance."""
    n = stop - start
    if n < 2 * _LEAST_SIDE:
        return None
    before = table[start + _LEAST_SIDE - 1 : stop - _LEAST_SIDE] - (table[start - 1] if start else 0)
    total = table[stop - 1] - (table[start - 1] if start else 0)
    # all kinds together, and each against the rest
    best, most = 0, 0.0
    kinds_together = max(int(np.count_nonzero(total)) - 1, 1)
    for counts, sums, freedom in (
        (before, total, kinds_together),
        *(
            (
                np.stack([before[:, kind], before.sum(axis=1) - before[:, kind]], axis=1),
                np.array([total[kind], n - total[kind]]),
                1,
            )
            for kind in np.flatnonzero(total)
        ),
    ):
        ratio = 2 * (_entropy(counts) + _entropy(sums - counts) - _entropy(sums[None]))
        limit = freedom * (1 - 2 / (9 * freedom) + _NORMAL * np.sqrt(2 / (9 * freedom))) ** 3
        if float(ratio.max()) / limit > most:
            best, most = int(ratio.argmax()), float(ratio.max()) / limit
    place = start + _LEAST_SIDE + best
    return place if most * _independent(kinds, start, place, stop) > 1 else None


def _independent(kinds: NDArray[np.int64], start: int, place: int, stop: int) -> float:
    """Return how many independent draws a value counts as: fewer than one where variants come in runs."""
    expected = same = 0.0
    for low, high in ((start, place), (place, stop)):
        counts = np.bincount(kinds[low:high])
        expected += (high - low - 1) * float(((counts / counts.sum()) ** 2).sum())
        same += float(np.count_nonzero(kinds[low + 1 : high] == kinds[low : high - 1]))
    pairs = stop - start - 2
    memory = min(max((same - expected) / max(pairs - expected, 1.0), 0.0), 0.9)
    return (1 - memory) / (1 + memory)


def _entropy(counts: Array) -> Array:
    """Return Σ counts · log(share), the log likelihood of draws with these frequencies."""
    total = counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(counts > 0, counts * np.log(counts / total), 0.0).sum(axis=1))
