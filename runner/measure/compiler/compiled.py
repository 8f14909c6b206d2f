"""Compilation by inductor, with proof that inductor did it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import metrics

from runner.launch.failures import TaskFailure
from runner.measure.compiler.inductor_options import candidate_options
from runner.measure.kernels import tuning
from runner.measure.state.device import Device
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.inductor_options import InductorValue

_WARM_CALLS = 5  # gpt-fast's WARMUP_ITER


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
