"""Call time: the host's clock around one call, from one synchronisation to the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.measure.device import Device
from runner.summary import block_standard_error, median

Call = Callable[[], Any]

ENOUGH = 0.005  # standard error of the mean log ratio, from blocks, at which more pairs say no more
_WARM_CALLS = 5
_MOST_PAIRS = 300  # unless more are asked for
_CHECK_EVERY = 10  # pairs
_WINDOW_S = 0.01
_MOST_CALLS = 1000


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
        """Logarithm of the speedup of each pair."""
        return [math.log(eager / compiled) for eager, compiled in zip(self.eager, self.compiled, strict=True)]


def _nothing() -> None:
    pass


def paired(
    eager: Call,
    compiled: Call,
    device: Device,
    *,
    at_least: int,
    budget_s: float,
    before_ten: Callable[[], None] = _nothing,
    before_pair: Callable[[], None] = _nothing,
    before_call: Callable[[], None] = _nothing,
    calls: int = 1,
    warm_calls: int = _WARM_CALLS,
) -> PairedTimes:
    """Eager and compiled in turn, the order changing from pair to pair, so that drift hits both alike.

    Takes `at_least` pairs, then more until the ratio is known to 0.5 % or the budget is spent. A sample is
    the mean of `calls` calls. Off the clock: `before_ten` before every ten pairs, `before_pair` before each
    of them, `before_call` before each sample.
    """

    def sample_ms(call: Call) -> float:
        before_call()
        return _mean_ms(call, device, calls)

    for _ in range(warm_calls):
        sample_ms(eager)
        sample_ms(compiled)
    times = PairedTimes([], [])
    ends = time.perf_counter() + budget_s
    for pair in range(max(_MOST_PAIRS, at_least)):
        if pair >= at_least and (time.perf_counter() > ends or _known(times, pair)):
            break
        if pair % _CHECK_EVERY == 0:
            before_ten()
        before_pair()
        if pair % 2:
            compiled_ms = sample_ms(compiled)
            eager_ms = sample_ms(eager)
        else:
            eager_ms = sample_ms(eager)
            compiled_ms = sample_ms(compiled)
        times.eager.append(eager_ms)
        times.compiled.append(compiled_ms)
    return times


def one_call_ms(call: Call, device: Device) -> float:
    device.synchronize()
    started = time.perf_counter()
    call()
    device.synchronize()
    return (time.perf_counter() - started) * 1e3


def _mean_ms(call: Call, device: Device, calls: int) -> float:
    if calls == 1:
        return one_call_ms(call, device)

    def all_of_them() -> None:
        for _ in range(calls):
            call()

    return one_call_ms(all_of_them, device) / calls


def back_to_back_ms(call: Call, device: Device, *, windows: int) -> list[float]:
    """Time of a call among many that follow each other without synchronisation, one sample a window."""
    calls = min(_MOST_CALLS, max(1, math.ceil(_WINDOW_S * 1e3 / one_call_ms(call, device))))
    return [_mean_ms(call, device, calls) for _ in range(windows)]


def _known(times: PairedTimes, pairs: int) -> bool:
    if pairs % _CHECK_EVERY:
        return False
    return block_standard_error(times.log_ratios) < ENOUGH
