"""Compilation by inductor, with proof that inductor did it.

`python -m runner.measure.compiler.compiled DEVICE` prints the answer of `compile_small`, which alone shows
whether all tools are there, and which notes can be taken.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import metrics

from runner.launch.failures import TaskFailure, failure_of
from runner.measure.compiler import toolchain
from runner.measure.compiler.counters import blind, modules
from runner.measure.compiler.inductor_options import candidate_options
from runner.measure.kernels import tuning
from runner.measure.kernels.produced import produced, profiled_steps
from runner.measure.state.device import Device, prepare
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.compilations import InductorValue
from runner.schema.records import Json

_WARM_CALLS = 5  # gpt-fast's WARMUP_ITER
_NO_CACHES = {"fx_graph_cache": False, "autotune_local_cache": False}
_EMPTY = "torch has none of a function that has some"


def compile_inductor(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    device: Device,
    options: Mapping[str, InductorValue],
) -> Callable[..., Any]:
    """Return the function compiled for static shapes in default mode (no CUDA graphs), and warmed up.

    Raise TaskFailure (failed, not_compiled) if inductor generated nothing, as under TORCHDYNAMO_DISABLE:
    eager code is never measured under inductor's name.
    """
    toolchain.share()
    tuning.watch()
    forget_compiles()
    metrics.reset()
    call = by_inductor(function, options)
    call(*operands)
    if counters["stats"]["unique_graphs"] == 0 or metrics.generated_kernel_count == 0:
        raise TaskFailure("failed", "not_compiled", "inductor generated no kernel: this would be eager code")
    for _ in range(_WARM_CALLS):
        call(*operands)
    device.synchronize()
    return call


def by_inductor(function: Callable[..., Any], options: Mapping[str, InductorValue]) -> Callable[..., Any]:
    """Return the function as `compile_inductor` compiles it, at its first call."""
    options = {**options, **candidate_options()}
    return torch.compile(function, backend="inductor", dynamic=False, fullgraph=True, options=options)


def compile_small(device_name: str) -> dict[str, Json]:
    """Compile one small function without caches. Return how long it took, which notes were taken, and why not
    the others; or the error."""
    started = time.perf_counter()
    try:
        device = prepare(device_name)
        x = torch.randn(4096, device=device.type)
        tuning.watch()
        forget_compiles()
        call = torch.compile(_small, dynamic=False, options=_NO_CACHES)
        call(x)
    except Exception as error:  # noqa: BLE001 - the printed answer
        failure = failure_of(error)
        return {"error": f"{failure.code}: {failure}"}
    compiled_s = time.perf_counter() - started
    contents = produced(modules(), profiled_steps(lambda: call(x), device))
    compiled = contents.compiled
    kernels = [kernel for kernel in compiled.kernels if kernel.origins or kernel.kind == "cpp"]
    noted = {
        "kernels": kernels,
        "kernel_count": contents.generated,
        "phases": compiled.phases_s,
        "graph breaks": compiled.graph_breaks,
    }
    if device.type == "cuda":  # with a time of each configuration, where there were several
        noted["choices"] = [
            kernel for kernel in kernels if kernel.config and (kernel.candidates or len(kernel.offered) == 1)
        ]
    lacking = {name: _EMPTY for name, facts in noted.items() if not facts} | blind
    taken = [name for name in noted if name not in lacking]
    return {"compiled_s": compiled_s, "noted": taken, "blind": lacking}


def _small(x: torch.Tensor) -> torch.Tensor:
    result = torch.sin(x) + 1
    torch._dynamo.graph_break()
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compile_small(sys.argv[1])) + "\n")
