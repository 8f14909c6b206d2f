"""gpt-fast's own clock, for the metrics that have its names.

Its benchmark.py compiles with grad mode on and uses inductor's benchmarker: on CUDA the minimum of up to 100
single calls between events, each after the L2 cache was overwritten; on a CPU the median of 0.1 s of calls.
One sample here is one such answer: what one run of its script would print.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.runtime.benchmarking import benchmarker

from runner.measure.compiler.inductor_options import candidate_options

CLOCK = "inductor benchmarker, as gpt-fast's benchmark.py"
_WARM_CALLS = 5


def samples_ms(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    options: dict[str, bool],
    *,
    samples: int,
) -> list[float]:
    """Return milliseconds of a call, measured as gpt-fast's script does."""
    with torch.enable_grad():
        compiled = torch.compile(function, dynamic=False, options={**options, **candidate_options()})
        for _ in range(_WARM_CALLS):
            compiled(*operands)
        return [float(benchmarker.benchmark(compiled, operands, {})) for _ in range(samples)]
