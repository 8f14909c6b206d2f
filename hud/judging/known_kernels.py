"""Same-choice time: a compilation's kernels against what the same choices took before (measuring rule C4).

A model's total moves with each draw of the autotuner. Each kernel is therefore compared with the median of
its own (slot, choice); the sum over the known ones is steady to a fraction of a percent. Times are
microseconds of device time in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hud.judging.choices import Drawn
from runner.schema.statistics import median

LEAST_COVERAGE = 0.7
_MOST_SEEN = 20  # compilations that make a median: it stays when the code gets slower later


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
