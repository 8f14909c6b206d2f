"""Same-choice time, and the regret of the autotuner's choices (measuring rules C4 and C6). Numbers only.

A model's total moves with each draw of the autotuner. Each kernel is therefore compared with the median of
its own (slot, choice); the sum over the known ones is steady to a fraction of a percent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from runner.schema.statistics import median, t_interval

Drawn = Sequence[tuple[str, str, float]]  # slot, choice, µs of each kernel of one compilation

LEAST_COVERAGE = 0.7
_MOST_SEEN = 20  # compilations that make a median: it stays when the code gets slower later
LEAST_COMPILATIONS = 10  # for a regret
_RARE = 0.1
_NOTE = re.compile(r"95 % interval (\d+\.\d) to (\d+\.\d) % over (\d+) compilations(; at least)?")


@dataclass(frozen=True)
class Regret:
    """The share of the time that the best choices would save on average, with its 95 % interval over the
    compilations. `at_least`: choices still come that were never seen before, and may be better."""

    value: float
    low: float
    high: float
    compilations: int
    at_least: bool

    def note(self) -> str:
        """Return the interval in words, as the stored measurement keeps it."""
        words = f"95 % interval {100 * self.low:.1f} to {100 * self.high:.1f} %"
        words += f" over {self.compilations} compilations"
        return words + "; at least, since choices still come that were not seen before" * self.at_least

    @classmethod
    def from_note(cls, value: float, note: str | None) -> Regret | None:
        """Return the regret of a stored measurement; None where its note has no interval."""
        found = _NOTE.match(note or "")
        if found is None:
            return None
        low, high, compilations, at_least = found.groups()
        return cls(value, float(low) / 100, float(high) / 100, int(compilations), bool(at_least))


def autotune_regret(history: Sequence[Drawn]) -> Regret | None:
    """Return the regret of the compilations that have the newest one's slots; None below 10 of them.

    `history` is oldest first. The best choice of a slot is that of the smallest median among those seen at
    least twice; a slot without one counts with its mean.
    """
    slots = {slot for slot, _choice, _time_us in history[-1]} if history else set()
    alike = [drawn for drawn in history if {slot for slot, _choice, _time_us in drawn} == slots]
    if not slots or len(alike) < LEAST_COMPILATIONS:
        return None
    times: dict[str, dict[str, list[float]]] = {slot: {} for slot in sorted(slots)}
    for drawn in alike:
        for slot, choice, time_us in drawn:
            times[slot].setdefault(choice, []).append(time_us)
    best_us = 0.0
    for choices in times.values():
        repeated = [median(seen) for seen in choices.values() if len(seen) > 1]
        best_us += min(repeated) if repeated else fmean(time for seen in choices.values() for time in seen)
    totals = [sum(time_us for _slot, _choice, time_us in drawn) for drawn in alike]
    low_us, high_us = t_interval(totals)
    value, low, high = (
        max(0.0, 1 - best_us / time_us) if time_us > 0 else 0.0
        for time_us in (fmean(totals), low_us, high_us)
    )
    new = sum(any(len(times[slot][choice]) == 1 for slot, choice, _time in drawn) for drawn in alike)
    return Regret(value, low, high, len(alike), at_least=new > _RARE * len(alike))


def same_choice(drawn: Drawn, usual_us: Mapping[tuple[str, str], float]) -> tuple[float | None, float]:
    """Return the time of a compilation's known kernels ÷ the sum of their usual times, None without a known
    one, and the share of its time in them. `usual_us` is by slot and choice."""
    known_us = expected_us = total_us = 0.0
    for slot, choice, time_us in drawn:
        total_us += time_us
        if (slot, choice) in usual_us:
            known_us += time_us
            expected_us += usual_us[slot, choice]
    return (known_us / expected_us if expected_us else None), (known_us / total_us if total_us else 0.0)


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
    found = (same_choice([kernel for kernel in drawn if kernel[2] > 0], usual_us) for drawn in own)
    return [ratio if coverage >= LEAST_COVERAGE else None for ratio, coverage in found]
