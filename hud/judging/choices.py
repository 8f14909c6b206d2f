"""Same-choice time, the regret of the autotuner's choices, and whether two sides choose alike (measuring
rules C4, C6 and 18). Numbers only.

A model's total moves with each draw of the autotuner. Each kernel is therefore compared with the median of
its own (slot, choice); the sum over the known ones is steady to a fraction of a percent.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runner.schema.compilations import SEARCHES_ON, Kernels, compare_candidates
from runner.schema.draws import ChoiceNoise, choice_noise
from runner.schema.statistics import (
    PAIR_ALPHA,
    PAIR_FLOOR,
    geometric_mean,
    median,
    student_p,
    t_test,
    welch,
)

Drawn = Sequence[tuple[str, str, float]]  # slot, choice, µs of each kernel of one compilation

ChoiceWord = Literal["confirmed", "dismissed", "inconclusive"]
Frequencies = Literal["yes", "no", "cannot_tell"]

LEAST_COVERAGE = 0.7
_MOST_SEEN = 20  # compilations that make a median: it stays when the code gets slower later
LEAST_COMPILATIONS = 10  # for a regret
_RARE = 0.1
_ENOUGH = 20  # draws of a side from which "choices come as often" may be said
_ALIKE_P = 0.1  # the p-value from which that may be said
_SHUFFLES = 4000
_FLOOR = math.log1p(PAIR_FLOOR)
AT_LEAST = "at least, since choices still come that were not seen before"


@dataclass(frozen=True)
class Regret:
    """The share of the time that the best choices would save on average; `spread` is half of its 95 %
    interval over the compilations. `at_least`: choices still come that were never seen before, and may be
    better."""

    value: float
    spread: float
    compilations: int
    at_least: bool


def autotune_regret(history: Sequence[Drawn]) -> Regret | None:
    """Return the regret of the compilations that have the newest one's slots; None below 10 of them.

    `history` is oldest first. A choice costs the median of its times, so that no other reason to be slower
    counts. The best choice of a slot is the fastest one of those seen at least twice; a slot without one
    counts with its mean.
    """
    slots = {slot for slot, _choice, _time_us in history[-1]} if history else set()
    alike = [drawn for drawn in history if {slot for slot, _choice, _time_us in drawn} == slots]
    if not slots or len(alike) < LEAST_COMPILATIONS:
        return None
    times: dict[str, dict[str, list[float]]] = {slot: {} for slot in sorted(slots)}
    for drawn in alike:
        for slot, choice, time_us in drawn:
            times[slot].setdefault(choice, []).append(time_us)
    usual_us = {
        (slot, choice): median(seen) for slot, choices in times.items() for choice, seen in choices.items()
    }
    best_us = 0.0
    for slot, choices in times.items():
        repeated = [usual_us[slot, choice] for choice, seen in choices.items() if len(seen) > 1]
        best_us += min(repeated) if repeated else fmean(usual_us[slot, choice] for choice in choices)
    totals = [sum(usual_us[slot, choice] for slot, choice, _time_us in drawn) for drawn in alike]
    mean_us, (low_us, high_us, _p) = fmean(totals), t_test(totals)
    share, half = (best_us / mean_us, (high_us - low_us) / 2 / mean_us) if mean_us > 0 else (1.0, 0.0)
    new = sum(any(len(times[slot][choice]) == 1 for slot, choice, _time in drawn) for drawn in alike)
    saved = max(0.0, round(1 - share, 9))  # sums in another order differ in the last digit
    return Regret(saved, round(share * half, 9), len(alike), at_least=new > _RARE * len(alike))


def same_choice_ratios(history: Iterable[Drawn], own: Sequence[Drawn]) -> list[float | None]:
    """Return for each of these compilations the time of its known kernels ÷ the sum of their medians; None
    where they take less than 70 % of its time. `history` is oldest first; a choice's median is that of the
    first 20 compilations with it. A kernel without a positive time is left out."""
    seen: dict[tuple[str, str], list[float]] = {}
    for drawn in history:
        for slot, choice, time_us in drawn:
            times_us = seen.setdefault((slot, choice), [])
            if len(times_us) < _MOST_SEEN and time_us > 0:
                times_us.append(time_us)
    usual_us = {key: median(times_us) for key, times_us in seen.items() if times_us}
    ratios: list[float | None] = []
    for drawn in own:
        timed = [kernel for kernel in drawn if kernel[2] > 0]
        known = [(us, usual_us[slot, choice]) for slot, choice, us in timed if (slot, choice) in usual_us]
        known_us, expected_us = (sum(column) for column in zip((0.0, 0.0), *known, strict=True))
        total_us = sum(time_us for _slot, _choice, time_us in timed)
        ratios.append(known_us / expected_us if known and known_us / total_us >= LEAST_COVERAGE else None)
    return ratios


@dataclass(frozen=True)
class ChoiceChange:
    """The choices of the autotuner on both sides.

    `same_candidates`: whether each slot of both sides has the same candidates, None where some are unknown;
    `differing` are the slots that have not. `frequencies`: whether choices came with other frequencies.

    `ratio` is the expected time of the candidate's draws ÷ that of the baseline's, each choice counted with
    one time for both sides, with the 95 % interval by Student's t and p by exchanging draws. It is over the
    slots whose candidates differ, else over all of both sides. `best_ratio` is, over the slots whose
    candidates differ, the fastest choice that the candidate may take ÷ that of the baseline; of the
    `differing_candidates` of these slots, `untimed` were not timed on both sides.
    """

    same_candidates: bool | None
    differing: tuple[str, ...] = ()
    frequencies: Frequencies = "cannot_tell"
    frequencies_p: float | None = None
    word: ChoiceWord = "inconclusive"
    worse: bool | None = None  # None without a confirmed change
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    best_ratio: float | None = None
    best_p: float | None = None
    differing_candidates: int = 0
    untimed: int = 0


def choice_change(
    base: Sequence[Kernels], head: Sequence[Kernels], pinned: Sequence[tuple[Kernels, Kernels]] = ()
) -> ChoiceChange:
    """Compare what the autotuner chose in the free processes of both sides, in the slots that both have.

    `pinned` are the kernels of both sides at forced choices: they time what may be chosen. `confirmed`: the
    expected time or the fastest choice changed by more than 2 %, at p ≤ .005. `dismissed`: the candidates are
    the same, and the interval of the expected time lies within ± 2 %.
    """
    shared = sorted(set().union(*base) & set().union(*head))
    same, offered = compare_candidates(base, head)
    differing = tuple(offered)
    if not shared or min(len(base), len(head)) < 2:
        return ChoiceChange(same, differing)
    frequencies = _frequencies(base, head, shared)
    slots = differing or tuple(shared)
    timed = [*base, *(pair[0] for pair in pinned)], [*head, *(pair[1] for pair in pinned)]
    times = _ChoiceTimes.of(*timed, slots)
    logs = [[math.log(times.expected_us(kernels)) for kernels in side] for side in (base, head)]
    if not times.us or not all(map(math.isfinite, (*logs[0], *logs[1]))):
        return ChoiceChange(same, differing, *frequencies)
    ratio, (low, high, _p) = fmean(logs[1]) - fmean(logs[0]), welch(*logs)
    p = _exchange_p(np.array([*logs[0], *logs[1]])[:, None], len(base))
    old, new = (
        {(slot, choice) for slot, sides in offered.items() for choice in sides[side]} for side in (0, 1)
    )
    drawn = [
        {(slot, kernels[slot].choice) for kernels in side for slot in differing if slot in kernels}
        for side in (base, head)
    ]
    lost = times.lost(old | drawn[0], new), times.lost(new | drawn[1], old)
    best, best_p = times.best(*lost) if differing else (None, None)
    word: ChoiceWord = "inconclusive"
    worse = None
    if p <= PAIR_ALPHA and abs(ratio) > _FLOOR:
        word, worse = "confirmed", ratio > 0
    elif best is not None and best_p is not None and best_p <= PAIR_ALPHA and abs(best) > _FLOOR:
        word, worse = "confirmed", best > 0
    elif same and low >= -_FLOOR and high <= _FLOOR:
        word = "dismissed"
    expected = (math.exp(ratio), math.exp(low), math.exp(high), p)
    best_ratio = None if best is None else math.exp(best)
    to_time = {(slot, choice) for slot, choice in old | new if choice != SEARCHES_ON}
    counts = len(to_time), len(to_time - times.on_both_sides)
    return ChoiceChange(same, differing, *frequencies, word, worse, *expected, best_ratio, best_p, *counts)


@dataclass(frozen=True)
class _ChoiceTimes:
    """The device time in µs of each choice of some slots, one for both sides, with the processes behind it;
    and the noise of one process."""

    us: Mapping[str, Mapping[str, tuple[float, int]]]  # by slot and choice
    on_both_sides: Set[tuple[str, str]]
    noise: ChoiceNoise

    @classmethod
    def of(cls, base: Iterable[Kernels], head: Iterable[Kernels], slots: Sequence[str]) -> _ChoiceTimes:
        times_us: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        for index, side in enumerate((base, head)):
            for kernels in side:
                for slot in slots:
                    if slot in kernels and kernels[slot].time_us > 0:
                        sides = times_us.setdefault((slot, kernels[slot].choice), ([], []))
                        sides[index].append(kernels[slot].time_us)
        changes = [geometric_mean(new) / geometric_mean(old) for old, new in times_us.values() if old and new]
        half = math.sqrt(geometric_mean(changes or [1.0]))  # of the change of the code, not of the choice
        us: dict[str, dict[str, tuple[float, int]]] = {slot: {} for slot in slots}
        for (slot, choice), sides in times_us.items():
            means = [
                geometric_mean(side) * by for side, by in zip(sides, (half, 1 / half), strict=True) if side
            ]
            us[slot][choice] = geometric_mean(means), len(sides[0]) + len(sides[1])
        both = {key for key, sides in times_us.items() if all(sides)}
        return cls(us, both, choice_noise(side for sides in times_us.values() for side in sides))

    def expected_us(self, kernels: Kernels) -> float:
        """Return the time of these choices; nan without a timed one."""
        chosen = ((self.us[slot], kernels[slot].choice) for slot in self.us if slot in kernels)
        return sum(timed[choice][0] for timed, choice in chosen if choice in timed) or math.nan

    def lost(self, own: Set[tuple[str, str]], other: Set[tuple[str, str]]) -> Set[tuple[str, str]]:
        """Return the candidates that a side cannot choose: those of the other that it has not and, in slots
        where only the other searches on, what that may have found."""
        slower = {
            (slot, choice)
            for slot, timed in self.us.items()
            if (slot, SEARCHES_ON) in other - own
            for choice in timed
        }
        return (slower | other) - own

    def best(
        self, base: Set[tuple[str, str]], head: Set[tuple[str, str]]
    ) -> tuple[float | None, float | None]:
        """Return the log ratio of the fastest times that both sides may choose, who have lost these
        candidates, and its p by the noise; None where a slot of a side has no timed candidate. Of many that
        are lost one is the fastest by chance, so p is multiplied by their number."""
        totals_us, variances, lost = [0.0, 0.0], [0.0, 0.0], 0
        for slot, timed in self.us.items():
            able = [
                sorted((us, choice) for choice, us in timed.items() if (slot, choice) not in side)
                for side in (base, head)
            ]
            if not all(able):
                return None, None
            lost += 2 * len(timed) - len(able[0]) - len(able[1])
            for index, ((time_us, count), choice) in enumerate(side[0] for side in able):
                totals_us[index] += time_us
                if choice != able[1 - index][0][1]:
                    variances[index] += time_us**2 / count
        ratio = math.log(totals_us[1] / totals_us[0])
        if ratio == 0.0 or not self.noise.degrees:
            return ratio, None if ratio else 1.0
        error = self.noise.noise * math.sqrt(sum(v / t**2 for v, t in zip(variances, totals_us, strict=True)))
        return ratio, min(1.0, lost * student_p(ratio / error, self.noise.degrees)) if error else 0.0


def _frequencies(
    base: Sequence[Kernels], head: Sequence[Kernels], shared: Sequence[str]
) -> tuple[Frequencies, float | None]:
    """Return whether slots of both sides drew their choices with other frequencies, and p by exchanging
    draws: of the summed squared differences of the shares of all choices."""
    drawn = [
        {(slot, kernels[slot].choice) for slot in shared if slot in kernels} for kernels in (*base, *head)
    ]
    keys = sorted(set().union(*drawn))
    table = np.array([[key in own for key in keys] for own in drawn], dtype=float)
    p = _exchange_p(table, len(base))
    if p <= PAIR_ALPHA:
        return "yes", p
    return ("no" if p > _ALIKE_P and min(len(base), len(head)) >= _ENOUGH else "cannot_tell"), p


def _exchange_p(rows: NDArray[np.float64], first: int) -> float:
    """Return the p-value of equal sides, of which the first has so many rows: the share of the exchanges of
    rows that set the means at least as far apart. All are counted where they are few, else a fixed sample, so
    that a comparison answers alike each time."""
    places = range(len(rows))
    if math.comb(len(rows), first) <= _SHUFFLES:
        splits = list(itertools.combinations(places, first))  # the first one is the sides as they are
    else:
        chance = random.Random(0)  # noqa: S311
        splits = [(*places[:first],), *((*chance.sample(places, first),) for _ in range(_SHUFFLES))]
    masks = np.zeros((len(splits), len(rows)))
    np.put_along_axis(masks, np.array(splits), 1.0, axis=1)
    apart = masks @ rows / first - (1 - masks) @ rows / (len(rows) - first)
    statistic = (apart**2).sum(axis=1)
    return float(np.mean(statistic >= statistic[0] * (1 - 1e-9) - 1e-12))
