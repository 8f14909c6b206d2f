"""Compile time: how much longer the first calls take than later ones.

Measured from the first compiled call to the first one in which nothing was compiled, tuned or recorded as a
CUDA graph, minus the steady time of as many calls. An eager call and a small compile come before, off the
clock, so that starting the toolchain does not count.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch._dynamo.utils import compilation_time_metrics, counters

from runner.measure.compiler import toolchain
from runner.measure.compiler.counters import forget
from runner.measure.kernels import pinning
from runner.measure.state.device import Device
from runner.measure.timing.call_time import Call, one_call_ms
from runner.schema.statistics import median

_compile_static = partial(torch.compile, dynamic=False)
_MOST_CALLS = 16
_STEADY_CALLS = 3
_WORKERS_START_S = 60
_CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR")
_REMOTE_CACHES = ("FX_GRAPH", "AUTOTUNE", "AUTOGRAD")


@dataclass(frozen=True)
class FirstCalls:
    """Milliseconds of the calls that compiled something, and of steady ones after them.

    `phases_s` is dynamo's own account of the compiling calls: phase → seconds; phases nest.
    """

    compiling_ms: list[float]
    steady_ms: list[float]
    settled: bool  # False if even the last call tried compiled something
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def compile_s(self) -> float:
        """Return the seconds that the compiling calls took beyond as many steady ones."""
        return max(0.0, sum(self.compiling_ms) - len(self.compiling_ms) * median(self.steady_ms)) / 1e3


def cache_variables(folder: Path) -> dict[str, str]:
    """Return variables that keep all compile caches of a process below `folder`, which is created."""
    variables = {f"TORCHINDUCTOR_{cache}_REMOTE_CACHE": "0" for cache in _REMOTE_CACHES}
    for name in _CACHE_VARIABLES:
        cache = folder / name.lower()
        cache.mkdir(parents=True, exist_ok=True)
        variables[name] = str(cache)
    return variables


def warm_toolchain(
    device: Device, *, compiled: Callable[[Call], Call] = _compile_static, workers: bool = True
) -> None:
    """Start the compilers, and `workers`, with a small function off the clock, then reset all counters."""
    operand = torch.ones(4096, device=device.type)

    def small() -> torch.Tensor:
        return torch.sin(operand) + 1

    with torch.no_grad():
        compiled(small)()
    device.synchronize()
    if workers:  # go on without them if they do not start
        from torch._inductor.async_compile import AsyncCompile  # noqa: PLC0415 - not every backend needs inductor

        if wait := getattr(AsyncCompile, "wait_pool_ready", None):
            with contextlib.suppress(TimeoutError, RuntimeError):
                wait(_WORKERS_START_S)
    forget_compiles()
    pinning.forget_pinned()


def forget_compiles() -> None:
    """Drop what dynamo compiled so far and reset every counter to 0."""
    torch._dynamo.reset()
    counters.clear()
    compilation_time_metrics.clear()
    forget()


def start_workers() -> None:
    """Start inductor's compile processes in the background, all of them."""
    from torch._inductor.async_compile import AsyncCompile  # noqa: PLC0415 - as above

    toolchain.share()
    AsyncCompile.warm_pool()
    if send_job := getattr(AsyncCompile, "use_process_pool", None):  # torch 2.6 does so by itself
        send_job()  # the first job forks them


def first_calls(call: Call, device: Device, *, before_call: Callable[[], None]) -> FirstCalls:
    """Time calls until nothing is compiled any more, then three steady ones."""
    compiling: list[float] = []
    steady: list[float] = []
    for _ in range(_MOST_CALLS):
        known = _compilations()
        before_call()
        time_ms = one_call_ms(call, device)
        if _compilations() == known and compiling:
            steady.append(time_ms)
            break
        compiling.append(time_ms)
    phases = {name: sum(times) for name, times in compilation_time_metrics.items()}
    settled = bool(steady)
    for _ in range(_STEADY_CALLS - len(steady)):
        before_call()
        steady.append(one_call_ms(call, device))
    return FirstCalls(compiling, steady, settled, phases)


def _compilations() -> int:
    """Return how much dynamo's clock has seen: frames, backends, autotuning, recorded CUDA graphs."""
    return sum(len(times) for times in compilation_time_metrics.values())
