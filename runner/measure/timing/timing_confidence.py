"""How precise a speedup is: its standard error, a warning if that is too large, and its results.

The speedup is the ratio of both medians. The median of the pairs' ratios is another estimate of it; if drift
or a busy host pulls the two apart, neither can be trusted.
"""

from __future__ import annotations

import math

from runner.measure.recorder import Result
from runner.measure.timing.call_time import ENOUGH, PairedTimes
from runner.schema.records import Json
from runner.schema.statistics import MAD_TO_SD, block_standard_error, median, spread

_BLOCKS = 10
_LEAST_BLOCKS = 5


def standard_error(log_ratios: list[float]) -> float:
    """Return the standard error of the mean, from ten blocks; for fewer than 20 pairs from five or more
    blocks of two, for fewer than ten pairs infinity."""
    blocks = min(_BLOCKS, len(log_ratios) // 2)
    return block_standard_error(log_ratios, blocks) if blocks >= _LEAST_BLOCKS else math.inf


def warning(times: PairedTimes) -> str:
    """Return why the speedup may be imprecise, or '' if the pairs agree and are enough."""
    ratios = times.log_ratios
    error = standard_error(ratios)
    middle = median(ratios)
    pairs = f"{len(ratios)} {'pair' if len(ratios) == 1 else 'pairs'}"
    warnings = []
    if math.isinf(error):
        warnings.append(f"only {pairs}: too few to estimate the precision")
        # the standard error of a median, as if the values were independent
        deviation = MAD_TO_SD * median([abs(ratio - middle) for ratio in ratios])
        error = 1.2533 * deviation / math.sqrt(len(ratios))
    elif error > ENOUGH:
        warnings.append(f"known to ±{error:.1%} (one standard error, {pairs}), not to {ENOUGH:.1%}")
    if abs(math.log(times.speedup) - middle) > max(ENOUGH, error):
        of_pairs = f"the median of the pairs' ratios is {math.exp(middle):.3g}"
        warnings.append(f"{of_pairs}, the ratio of medians {times.speedup:.3g}")
    return "; ".join(warnings)


def facts(times: PairedTimes) -> dict[str, Json]:
    """Return the facts that a speedup's record has beside its value."""
    ratios = times.log_ratios
    error, text = standard_error(ratios), warning(times)
    return {
        "spread": spread([math.exp(ratio) for ratio in ratios]),
        "median_of_pair_ratios": math.exp(median(ratios)),
        **({"log_ratio_standard_error": error} if math.isfinite(error) else {}),
        **({"warning": text} if text else {}),
    }


def latency_results(times: PairedTimes, clock: str, suffix: str = "", **more: Json) -> list[Result]:
    """Return the latencies of eager and compiled, and the speedup; the facts `more` stand beside each."""
    of_speedup = {**facts(times), **more}
    return [
        Result(f"eager_latency{suffix}_ms", times.eager, clock, facts=more),
        Result(f"compiled_latency{suffix}_ms", times.compiled, clock, facts=more),
        Result(f"speedup{suffix}", [times.speedup], clock, n=len(times.eager), facts=of_speedup),
    ]
