"""A/B comparison: judge a metric from pairs of processes, and the kernels of both sides. Numbers only
(measuring rule 18).

Free processes compile afresh, so a value is one compilation: Student's t over them, by pairs and by sides,
judges compile time, caches, memory and whatever was not measured at equal choices. Where the kernels are
known there are three answers: of the code, by draws at equal choices; of the autotuner's choices; and of the
kernels that one side alone has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from hud.judging.choices import ChoiceChange, choice_change
from runner.schema.compilations import Kernels
from runner.schema.draws import CodeChange, Draw, code_change
from runner.schema.statistics import PairedChange, median, pair_middles, paired_change


@dataclass(frozen=True)
class PairVerdict:
    """The result of a comparison.

    `base` and `head` are geometric means over the pairs, like the change; without a pair they are the sides'
    medians, None for a side without a value. `better` is None without a confirmed change or if the metric
    has no direction.
    """

    base: float | None
    head: float | None
    pairs: int  # with a value on both sides
    change: PairedChange
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
    change = paired_change(both, is_exact=kind == "deterministic")
    if not both:
        sides = ([value for value in side if value is not None] for side in (base, head))
        base_median, head_median = (median(side) if side else None for side in sides)
        return PairVerdict(base_median, head_median, 0, change, None)
    better = None
    if change.word == "confirmed" and change.change and direction != "none":
        better = (change.change > 0) == (direction == "up")
    return PairVerdict(*pair_middles(both), len(both), change, better)


@dataclass(frozen=True)
class KernelComparison:
    """The three answers of a comparison whose kernels are known.

    `only_base` and `only_head` are the slots that one side alone has, with their device time in a step, mean
    over its draws. `equal_choice_percent` is the share of the device time at equal choices in the pinned
    processes, None without them; `unequal_percent` has the share of each slot of the rest.
    """

    code: CodeChange
    choice: ChoiceChange
    only_base: tuple[str, ...]
    only_head: tuple[str, ...]
    only_base_us: float
    only_head_us: float
    equal_choice_percent: float | None = None
    unequal_percent: Mapping[str, float] = field(default_factory=dict)


def compare_kernels(
    base: Sequence[Kernels],
    head: Sequence[Kernels],
    *,
    draws: Sequence[Draw] = (),
    most: int | None = None,
    pinned: Sequence[tuple[Kernels, Kernels]] = (),
    candidates: Sequence[tuple[Kernels, Kernels]] = (),
) -> KernelComparison:
    """Compare both sides: the kernels of their free processes, and what was measured at equal choices.

    `draws` and `most` are those of `code_change`. `pinned` are the kernels of baseline and candidate at each
    draw, `candidates` those at further choices that were timed because one side alone may take them.
    """
    slots = [set().union(*side) for side in (base, head)]
    only = [tuple(sorted(own - other)) for own, other in (slots, slots[::-1])]
    only_us = [
        fmean(sum(kernels[slot].time_us for slot in names if slot in kernels) for kernels in side)
        for names, side in zip(only, (base, head), strict=True)
    ]
    code, choice = code_change(draws, most), choice_change(base, head, [*pinned, *candidates])
    return KernelComparison(code, choice, only[0], only[1], only_us[0], only_us[1], *_equal_choices(pinned))


def _equal_choices(pinned: Sequence[tuple[Kernels, Kernels]]) -> tuple[float | None, dict[str, float]]:
    """Return the per cent of the device time in slots with the same choice on both sides, and those of each
    other slot, the largest first."""
    unequal_us: dict[str, float] = {}
    total_us = 0.0
    for sides in pinned:
        for own, other in (sides, sides[::-1]):
            for slot, kernel in own.items():
                total_us += kernel.time_us
                if slot not in other or other[slot].choice != kernel.choice:
                    unequal_us[slot] = unequal_us.get(slot, 0.0) + kernel.time_us
    if not total_us:
        return None, {}
    percents = {slot: 100 * time_us / total_us for slot, time_us in unequal_us.items()}
    return 100 - sum(percents.values()), dict(sorted(percents.items(), key=lambda item: -item[1]))
