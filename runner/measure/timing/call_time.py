"""Call time: the host's clock around one call, from one synchronisation to the next, and how precise the
speedup is by it.

The speedup is the ratio of both medians. The median of the pairs' ratios is another estimate of it; if drift
or a busy host pulls the two apart, neither can be trusted.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.measure import turns
from runner.measure.recorder import Result
from runner.measure.state.device import Device
from runner.schema.records import MOST_APART, MOST_ERROR, Json, MeasurementWarning
from runner.schema.statistics import MAD_TO_SD, block_standard_error, median, spread

Call = Callable[[], Any]

CLOCK = "host clock around one call"
PIPELINED_CLOCK = "host clock around calls without synchronisation"

ENOUGH = 0.005  # standard error of the mean log ratio, from blocks, at which more pairs add nothing
_MOST_PAIRS = 300  # unless more are asked for
_CHECK_EVERY = 10  # pairs
_WINDOW_MS = 10.0
_MOST_CALLS = 1000
_BLOCKS = 10
_LEAST_BLOCKS = 5


@dataclass(frozen=True)
class PairedTimes:
    """Samples in ms, in the order in which they were taken; `eager[i]` and `compiled[i]` are neighbours."""

    eager: list[float]
    compiled: list[float]

    @property
    def speedup(self) -> float:
        return median(self.eager) / median(self.compiled)

    @property
    def log_ratios(self) -> list[float]:
        """Return the logarithm of the speedup of each pair."""
        return [math.log(eager / compiled) for eager, compiled in zip(self.eager, self.compiled, strict=True)]


@dataclass(frozen=True)
class TimingPlan:
    """How many pairs to take: `at_least`, then more until the ratio is known to 0.5 % or `budget_s` is spent.

    A sample is the mean of `calls` calls. The `before_…` functions run off the clock: before every ten pairs,
    before each pair, before each sample.
    """

    at_least: int
    budget_s: float
    calls: int = 1
    warm_calls: int = 5
    before_ten: Callable[[], None] = lambda: None
    before_pair: Callable[[], None] = lambda: None
    before_call: Callable[[], None] = lambda: None


def interleaved_timings(eager: Call, compiled: Call, device: Device, plan: TimingPlan) -> PairedTimes:
    """Time eager and compiled in turn; the order changes from pair to pair, so that drift hits both alike.

    Where two processes take turns (`runner.measure.turns`), each turn is a part of the loop. Its first pair
    finds the other's data in the caches: it is dropped, unless it fills the turn.
    """

    def sample_ms(call: Call) -> float:
        plan.before_call()
        return _mean_ms(call, device, plan.calls)

    for _ in range(plan.warm_calls):
        sample_ms(eager)
        sample_ms(compiled)
    times = PairedTimes([], [])
    turn = turns.loop()
    ends = time.perf_counter() + plan.budget_s

    def has_enough() -> bool:
        pairs = len(times.eager)
        waited_s = turn.waited_s if turn else 0.0
        return pairs >= plan.at_least and (
            pairs >= _MOST_PAIRS
            or time.perf_counter() > ends + waited_s
            or (pairs % _CHECK_EVERY == 0 and block_standard_error(times.log_ratios) < ENOUGH)
        )

    is_over = False
    while not is_over:
        pairs = len(times.eager)
        if pairs % _CHECK_EVERY == 0:
            plan.before_ten()
        plan.before_pair()
        order = ((eager, times.eager), (compiled, times.compiled))
        for call, samples in reversed(order) if pairs % 2 else order:
            samples.append(sample_ms(call))
        if not turn:
            is_over = has_enough()
        elif turn.warms_up():
            times.eager.pop()
            times.compiled.pop()
        elif turn.is_long or len(times.eager) % _CHECK_EVERY == 0:
            is_over = turn.end(has_enough=turn.suffice and has_enough())
    return times


def pipelined_ms(call: Call, device: Device, *, windows: int) -> list[float]:
    """Time a call among many that follow each other without synchronisation; return one sample a window."""
    calls = min(_MOST_CALLS, max(1, math.ceil(_WINDOW_MS / one_call_ms(call, device))))
    return [_mean_ms(call, device, calls) for _ in range(windows)]


def one_call_ms(call: Call, device: Device) -> float:
    device.synchronize()
    started = time.perf_counter()
    call()
    device.synchronize()
    return (time.perf_counter() - started) * 1e3


def _mean_ms(call: Call, device: Device, calls: int) -> float:
    def all_of_them() -> None:
        for _ in range(calls):
            call()

    return one_call_ms(call if calls == 1 else all_of_them, device) / calls


def standard_error(log_ratios: list[float]) -> float:
    """Return the standard error of the mean, from ten blocks; for fewer than 20 pairs from five or more
    blocks of two, for fewer than ten pairs infinity."""
    blocks = min(_BLOCKS, len(log_ratios) // 2)
    return block_standard_error(log_ratios, blocks) if blocks >= _LEAST_BLOCKS else math.inf


def warning(times: PairedTimes) -> MeasurementWarning:
    """Return why the speedup may be imprecise, and whether it is too imprecise to decide."""
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
        warnings.append(f"uncertain by ±{error:.1%} (one standard error, {pairs}); the aim is ±{ENOUGH:.1%}")
    quality = "imprecise" if error > MOST_ERROR else ""
    apart = abs(math.log(times.speedup) - middle)
    if apart > max(ENOUGH, error):
        quality = quality or ("disagrees" if apart > MOST_APART * error else "")
        of_pairs = f"the median of the pairs' ratios is {math.exp(middle):.3g}"
        warnings.append(f"{of_pairs}, the ratio of medians {times.speedup:.3g}")
    return MeasurementWarning("; ".join(warnings), quality)


def facts(times: PairedTimes) -> dict[str, Json]:
    """Return the facts that a speedup's record has beside its value."""
    ratios = times.log_ratios
    error = standard_error(ratios)
    return {
        "spread": spread([math.exp(ratio) for ratio in ratios]),
        "median_of_pair_ratios": math.exp(median(ratios)),
        **({"log_ratio_standard_error": error} if math.isfinite(error) else {}),
        **warning(times).facts(),
    }


def latency_results(times: PairedTimes, clock: str, suffix: str = "", **more: Json) -> list[Result]:
    """Return the latencies of eager and compiled, and the speedup; the facts `more` stand beside each."""
    of_speedup = {**facts(times), **more}
    return [
        Result(f"eager_latency{suffix}_ms", times.eager, clock, facts=more),
        Result(f"compiled_latency{suffix}_ms", times.compiled, clock, facts=more),
        Result(f"speedup{suffix}", [times.speedup], clock, n=len(times.eager), facts=of_speedup),
    ]
