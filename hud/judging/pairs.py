"""A/B comparison: judge a metric from pairs of processes. Numbers only (measuring rule 18).

Every pair compiles both sides afresh, so a value is one compilation. Student's t over the compilations, by
pairs and by sides, decides whether there is a change. Where the kernels are known there are two further
questions: did choices come more or less often, and which slots does one side alone have?
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hud.judging.choices import same_choice
from runner.schema.statistics import (
    LEAST_PAIRS,
    PAIR_ALPHA,
    PAIR_FLOOR,
    PairedChange,
    median,
    pair_middles,
    paired_change,
    welch,
)

Word = Literal["confirmed", "dismissed", "inconclusive"]
Frequencies = Literal["yes", "no", "cannot_tell"]
_ENOUGH = 20  # compilations a side from which "choices come as often" may be said
_SHUFFLES = 4000


@dataclass(frozen=True)
class PairVerdict:
    """The result of a comparison.

    `base` and `head` are geometric means over the pairs, like the change; without a pair they are the sides'
    medians, None for a side without a value. `change` is None if the values have no ratio. `better` is None
    without a confirmed change or if the metric has no direction.
    """

    base: float | None
    head: float | None
    pairs: int  # with a value on both sides
    change: PairedChange | None
    word: Word
    better: bool | None


def judge_pairs(
    base: Sequence[float | None],
    head: Sequence[float | None],
    *,
    direction: Literal["up", "down", "none"],
    kind: Literal["timing", "deterministic", "status"] = "timing",
) -> PairVerdict:
    """Compare the values of both sides pair by pair; None stands for a process without a value.

    `confirmed`: p ≤ .005 and the 95 % interval does not lie within the 2 % floor, or any change of a
    deterministic metric. `dismissed`: the interval lies within the floor. `inconclusive`: everything else,
    and fewer than five pairs. Raise ValueError if the sides differ in length.
    """
    both = [(a, b) for a, b in zip(base, head, strict=True) if a is not None and b is not None]
    try:
        change = paired_change(both, is_exact=kind == "deterministic")
    except ValueError:
        change = None
    word: Word = change.word if change else "inconclusive"
    relative = change.change if change else None
    better = None
    if word == "confirmed" and relative and direction != "none":
        better = (relative > 0) == (direction == "up")
    if both:
        return PairVerdict(*pair_middles(both), len(both), change, word, better)
    sides = ([value for value in side if value is not None] for side in (base, head))
    base_median, head_median = (median(side) if side else None for side in sides)
    return PairVerdict(base_median, head_median, 0, change, word, better)


# A compilation's kernels: the choice and the device time in µs of each slot.
Kernels = Mapping[str, tuple[str, float]]


@dataclass(frozen=True)
class KernelComparison:
    """The three answers of a comparison whose kernels are known.

    `equal`: equal choices compared, with `ratio`, its interval and p; `coverage` is the share of device time
    in choices that both sides drew. `frequencies`: whether choices came with other frequencies, with p.
    """

    coverage: float
    frequencies: Frequencies
    frequencies_p: float | None
    only_base: tuple[str, ...]
    only_head: tuple[str, ...]
    equal: Word = "inconclusive"
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def compare_kernels(base: Sequence[Kernels], head: Sequence[Kernels]) -> KernelComparison:
    """Compare the compilations of both sides, kernel by kernel."""
    slots = [set().union(*side) if side else set() for side in (base, head)]
    one_sided = tuple(sorted(slots[0] - slots[1])), tuple(sorted(slots[1] - slots[0]))
    ratios, coverage = _equal_choices(base, head)
    answer = KernelComparison(coverage, *_frequencies(base, head), *one_sided)
    if min(map(len, ratios)) < 2:
        return answer
    low, high, p = welch(*ratios)
    word: Word = "inconclusive"
    limit = math.log1p(PAIR_FLOOR)
    if min(map(len, ratios)) >= LEAST_PAIRS:
        if -limit <= low and high <= limit:
            word = "dismissed"
        elif p <= PAIR_ALPHA:
            word = "confirmed"
    step = float(np.mean(ratios[1]) - np.mean(ratios[0]))
    return replace(answer, equal=word, ratio=math.exp(step), low=math.exp(low), high=math.exp(high), p=p)


def _equal_choices(base: Sequence[Kernels], head: Sequence[Kernels]) -> tuple[list[list[float]], float]:
    """Return log(observed ÷ expected) of each compilation over the choices that both sides drew, and the
    least share of a side's device time in them. What is expected is the mean of both sides' medians."""
    sides = [
        [[(slot, choice, us) for slot, (choice, us) in kernels.items() if us > 0] for kernels in side]
        for side in (base, head)
    ]
    times_us: tuple[dict[tuple[str, str], list[float]], ...] = ({}, {})
    for seen, side in zip(times_us, sides, strict=True):
        for slot, choice, us in itertools.chain.from_iterable(side):
            seen.setdefault((slot, choice), []).append(us)
    usual_us = {
        key: math.sqrt(median(times_us[0][key]) * median(times_us[1][key]))
        for key in times_us[0].keys() & times_us[1].keys()
    }
    if not usual_us:
        return [[], []], 0.0
    found = [[same_choice(drawn, usual_us) for drawn in side if drawn] for side in sides]
    ratios = [[math.log(ratio) for ratio, _coverage in side if ratio is not None] for side in found]
    return ratios, min(median([coverage for _ratio, coverage in side]) for side in found)


def _frequencies(base: Sequence[Kernels], head: Sequence[Kernels]) -> tuple[Frequencies, float | None]:
    """Return whether slots of both sides drew their choices with other frequencies, by exchanging sides.

    The statistic sums the squared differences of the shares of all choices. All exchanges are counted where
    there are few, else a fixed sample of them.
    """
    shared = sorted(set().union(*base) & set().union(*head)) if base and head else []
    draws = Counter((slot, k[slot][0]) for k in (*base, *head) for slot in shared if slot in k)
    keys = {key: place for place, key in enumerate(sorted(draws))}
    if not keys or min(len(base), len(head)) < 2:
        return "cannot_tell", None
    table = np.zeros((len(base) + len(head), len(keys)))
    for row, kernels in enumerate((*base, *head)):
        for slot in shared:
            if slot in kernels:
                table[row, keys[slot, kernels[slot][0]]] = 1.0
    table = table[:, table.any(axis=0) & ~table.all(axis=0)]
    masks = np.array(list(_exchanges(len(base), len(table))), dtype=float)
    share = masks @ table / len(base) - (1 - masks) @ table / len(head)
    statistic = (share**2).sum(axis=1)
    p = float(np.mean(statistic >= statistic[0] - 1e-9)) if table.shape[1] else 1.0
    if p <= PAIR_ALPHA:
        return "yes", p
    return ("no" if p > 0.1 and min(len(base), len(head)) >= _ENOUGH else "cannot_tell"), p


def _exchanges(first: int, count: int) -> Iterator[list[bool]]:
    """Yield which compilations count as base: as it was, then all other splits or a sample of them."""
    yield [place < first for place in range(count)]
    if math.comb(count, first) <= _SHUFFLES:
        for chosen in itertools.islice(itertools.combinations(range(count), first), 1, None):
            yield [place in chosen for place in range(count)]
        return
    chance = random.Random(0)  # noqa: S311 - a fixed sample, so that a comparison answers alike each time
    for _ in range(_SHUFFLES):
        chosen = tuple(chance.sample(range(count), first))
        yield [place in chosen for place in range(count)]
