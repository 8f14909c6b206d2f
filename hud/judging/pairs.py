"""A/B comparison: judge a metric from pairs of processes. Numbers only.

A pair is one fresh process of each side, one after the other on one accelerator. Its log ratio is one value;
Student's t over the pairs decides whether there is a change (measuring rule 18).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.schema.statistics import PAIR_FLOOR, PairedChange, median, pair_middles, paired_change

Word = Literal["confirmed", "dismissed", "inconclusive"]


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

    `confirmed`: a change past the 2 % floor that its 95 % interval does not contradict, or any change of a
    deterministic metric. `dismissed`: the interval lies within the floor. `inconclusive`: everything else,
    and fewer than five pairs. Raise ValueError if the sides differ in length.
    """
    both = [(a, b) for a, b in zip(base, head, strict=True) if a is not None and b is not None]
    try:
        change = paired_change(both, floor=0.0 if kind == "deterministic" else PAIR_FLOOR)
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
