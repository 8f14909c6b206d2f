"""gpt-fast's own clock, so that a number under its name is taken in its way.

Its benchmark.py compiles with grad mode on and asks inductor's benchmarker: on CUDA events around single
calls, each after the L2 cache was overwritten, and the minimum of up to 100 of them; on a CPU the median
of 0.1 s of calls. One sample here is one such answer, that is what one run of its script would print.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.runtime.benchmarking import benchmarker

from runner.measure.inductor_options import candidate_options

CLOCK = "inductor benchmarker, as gpt-fast's benchmark.py"
_WARM_CALLS = 5


def samples_ms(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    options: dict[str, bool],
    *,
    samples: int,
) -> list[float]:
    """Milliseconds of a call, as gpt-fast's script takes them."""
    with torch.enable_grad():
        compiled = torch.compile(function, dynamic=False, options={**options, **candidate_options()})
        for _ in range(_WARM_CALLS):
            compiled(*operands)
        return [float(benchmarker.benchmark(compiled, operands, {})) for _ in range(samples)]
