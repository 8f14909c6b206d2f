"""The cost of the autotuner's unlucky choices: the mean compilation against the best one. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, TypeVar

from runner.schema.statistics import t_interval

LEAST_COMPILATIONS = 10
_NEW_CHOICES = 0.1  # share of compilations with a choice seen once, above which the best is not known yet


class ChoiceTimes(Protocol):
    """How often a choice of a slot came in a number of compilations, and its median time."""

    @property
    def slot(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def median_us(self) -> float: ...
    @property
    def only_in(self) -> int | None: ...  # the compilation, where it came once


T = TypeVar("T", bound=ChoiceTimes)


@dataclass(frozen=True)
class Regret:
    """`value` is 1 - best / mean, in time (measuring rule C6), with its 95 % interval."""

    value: float
    low: float
    high: float
    at_least: bool  # too many choices were seen once, and one of them may be better
    compilations: int


def autotune_regret(totals_us: Sequence[float], choices: Sequence[ChoiceTimes]) -> Regret | None:
    """Return the regret over compilations with these times; None for fewer than ten.

    The best of a slot is its fastest choice among those seen twice or more. A slot without such a choice
    counts as it came.
    """
    count = len(totals_us)
    if count < LEAST_COMPILATIONS or not fmean(totals_us):
        return None
    saved_us = sum(saving_us(found, count) for found in by_slot(choices).values())
    mean_us, (low_us, high_us) = fmean(totals_us), t_interval(totals_us)
    best_us = mean_us - saved_us
    seen_once = {choice.only_in for choice in choices if choice.n == 1}
    return Regret(
        1 - best_us / mean_us,
        max(1 - best_us / low_us, 0.0) if low_us > 0 else 0.0,
        1 - best_us / high_us,
        len(seen_once) > _NEW_CHOICES * count,
        count,
    )


def by_slot(choices: Sequence[T]) -> dict[str, list[T]]:
    """Return the choices of each slot."""
    slots: dict[str, list[T]] = {}
    for choice in choices:
        slots.setdefault(choice.slot, []).append(choice)
    return slots


def saving_us(choices: Sequence[ChoiceTimes], compilations: int) -> float:
    """Return how much a slot's best choice would save in the mean compilation."""
    known = [choice.median_us for choice in choices if choice.n > 1]
    if not known:
        return 0.0
    best_us = min(known)
    return sum(choice.n * (choice.median_us - best_us) for choice in choices) / compilations
