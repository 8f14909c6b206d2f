"""Two environments measured in turn: what their process pairs say of a metric. Numbers only.

A pair has one fresh process of each side on one accelerator, one after the other. Its log ratio is one
value; Student's t over the pairs tells whether there is a change (measuring rule 18).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.schema.statistics import PAIR_FLOOR, PairedChange, median, pair_middles, paired_change

Word = Literal["confirmed", "dismissed", "inconclusive"]


@dataclass(frozen=True)
class PairVerdict:
    """`base` and `new` are geometric means over the pairs, as the change is; without a pair the sides'
    medians, None for a side without a value. `change` is None where values are not positive and differ, so
    that there is no ratio. `better` is None without a confirmed change or where the metric has no
    direction."""

    base: float | None
    new: float | None
    pairs: int  # with a value on both sides
    change: PairedChange | None
    word: Word
    better: bool | None


def judge_pairs(
    base: Sequence[float | None],
    new: Sequence[float | None],
    *,
    direction: Literal["up", "down", "none"],
    kind: Literal["timing", "deterministic", "status"] = "timing",
) -> PairVerdict:
    """Compares the values of both sides, pair by pair; None where a process gave no value.

    `confirmed` is a change past the floor of 2 % that its 95 % interval does not deny, of a deterministic
    metric any; `dismissed` is an interval within the floor; all else is `inconclusive`, and so is anything
    from fewer than five pairs. Raises ValueError where the sides are not equally long.
    """
    both = [(a, b) for a, b in zip(base, new, strict=True) if a is not None and b is not None]
    try:
        change = paired_change(both, floor=0.0 if kind == "deterministic" else PAIR_FLOOR)
    except ValueError:
        change = None
    word: Word = change.word if change else "inconclusive"
    relative = change.change if change else None
    better = None
    if word == "confirmed" and relative and direction != "none":
        better = (relative > 0) == (direction == "up")
    middles = pair_middles(both) if both else (_median(base), _median(new))
    return PairVerdict(*middles, len(both), change, word, better)


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return median(there) if there else None
