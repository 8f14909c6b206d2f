"""How well eager and compiled in turn tell a speedup, and in words where that is not well.

The speedup is the ratio of both medians. The ratios of the pairs are another way to say it; where drift or
a busy host pulls the two apart, neither is to be taken at its word.
"""

from __future__ import annotations

import math

from runner.measure.call_time import ENOUGH, PairedTimes
from runner.records import Json
from runner.summary import MAD_TO_SD, block_standard_error, median, spread

_BLOCKS = 10
_LEAST_BLOCKS = 5


def standard_error(log_ratios: list[float]) -> float:
    """Of their mean, from blocks of at least two: ten blocks, of fewer than 20 pairs fewer, down to five.
    Infinity for fewer than ten pairs."""
    blocks = min(_BLOCKS, len(log_ratios) // 2)
    return block_standard_error(log_ratios, blocks) if blocks >= _LEAST_BLOCKS else math.inf


def warning(times: PairedTimes) -> str:
    """What a reader of the speedup shall know, '' where its pairs agree and are enough."""
    ratios = times.log_ratios
    error = standard_error(ratios)
    middle = median(ratios)
    told = []
    if math.isinf(error):
        told.append(f"of {_pairs(len(ratios))} only: too few to say how well it is known")
    elif error > ENOUGH:
        told.append(f"known to ±{error:.1%} (one standard error, {_pairs(len(ratios))}), not to {ENOUGH:.1%}")
    apart = abs(math.log(times.speedup) - middle)
    if apart > max(ENOUGH, error if math.isfinite(error) else _of_few(ratios)):
        words = f"the median of the pairs' ratios is {math.exp(middle):.3g}"
        told.append(f"{words}, the ratio of medians {times.speedup:.3g}")
    return "; ".join(told)


def facts(times: PairedTimes) -> dict[str, Json]:
    """What stands beside a speedup in its record."""
    ratios = times.log_ratios
    error, words = standard_error(ratios), warning(times)
    return {
        "spread": spread([math.exp(ratio) for ratio in ratios]),
        "median_of_pair_ratios": math.exp(median(ratios)),
        **({"log_ratio_standard_error": error} if math.isfinite(error) else {}),
        **({"warning": words} if words else {}),
    }


def _pairs(count: int) -> str:
    return f"{count} {'pair' if count == 1 else 'pairs'}"


def _of_few(log_ratios: list[float]) -> float:
    """Standard error of a median, as if the values were independent."""
    middle = median(log_ratios)
    deviation = MAD_TO_SD * median([abs(value - middle) for value in log_ratios])
    return 1.2533 * deviation / math.sqrt(len(log_ratios))
