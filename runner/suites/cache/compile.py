"""Compile a model once, in a fresh process with the caches that its environment names."""

from __future__ import annotations

import dataclasses
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from runner.launch.failures import TaskFailure
from runner.measure.compiler import counters
from runner.measure.state.device import SEED, prepare
from runner.measure.timing import compile_time
from runner.measure.timing.call_time import one_call_ms
from runner.schema.suite import TaskSpec
from runner.suites.cache import ORIGINS
from runner.suites.torchdynamo.model.loaded_model import load
from runner.suites.torchdynamo.model.step import Step

_WARM_UP_CALLS = 5  # of the harness
_SWITCHES = {  # knob → torch's module of settings and the name there
    "fx_graph_cache": ("torch._inductor.config", "fx_graph_cache"),
    "aot_autograd_cache": ("torch._functorch.config", "enable_autograd_cache"),
    "autotune_cache": ("torch._inductor.config", "autotune_local_cache"),
    "local_pgo": ("torch._dynamo.config", "automatic_dynamic_local_pgo"),
}


@dataclass(frozen=True)
class Compiled:
    """One process's numbers. `result` is the norm of a step's result from the same state and seed."""

    compile_s: float
    warm_up_difference_s: float  # cachebench's compile time
    phases_s: dict[str, float]
    caches: dict[str, int]
    cache_hits: int
    cache_misses: int
    cache_bytes: int
    cache_entries: int
    result: float


def compile_once(spec: TaskSpec, folder: Path) -> Compiled:
    """Run eager, warm up the toolchain, then compile the model; `folder` is where the caches lie."""
    device = prepare(spec.device)
    _set_switches(spec)
    compile_time.start_workers()
    # the same model as a task of its own suite
    knobs = {name: spec.knobs[name] for name in ("size", "batch_size") if name in spec.knobs}
    task = dataclasses.replace(spec, suite=ORIGINS[spec.case], knobs=knobs)
    model = load(task)
    step = Step(model, task)
    step.remember()
    eager_ms = []
    for _ in range(_WARM_UP_CALLS):
        step.begin()
        eager_ms.append(one_call_ms(lambda: step.function(model.inputs), device))
    step.restore()
    toolchain_ms = one_call_ms(lambda: compile_time.warm_toolchain(device), device)
    already = _contents(folder)
    function = torch.compile(
        step.function,
        backend="inductor",
        dynamic=None if spec.dynamic else False,
        options={"triton.cudagraphs": spec.device == "cuda" and bool(spec.setting("cudagraphs"))},
    )
    if spec.dynamic:  # as --dynamic-shapes --dynamic-batch-only: no other dimension may change
        for tensor in model.batch_tensors(model.inputs):
            torch._dynamo.mark_dynamic(tensor, 0)

    def compiled() -> Any:
        with torch.set_grad_enabled(spec.mode == "training"):
            return function(model.inputs)

    found = compile_time.first_calls(compiled, device, before_call=step.begin)
    if counters.unique_graphs() == 0:
        raise TaskFailure("failed", "not_compiled", "inductor compiled nothing: this would be eager code")
    counted = counters.counts()
    calls_ms = [*found.compiling_ms, *found.steady_ms, *[found.steady_ms[-1]] * _WARM_UP_CALLS]
    first_ms = sum(calls_ms[:_WARM_UP_CALLS])
    size, entries = (now - before for now, before in zip(_contents(folder), already, strict=True))
    return Compiled(
        compile_s=found.compile_s,
        # the harness starts the toolchain on the clock
        warm_up_difference_s=(toolchain_ms + first_ms - sum(eager_ms)) / 1e3,
        phases_s=found.phases_s,
        caches=counted.caches,
        cache_hits=counted.cache_hits,
        cache_misses=counted.cache_misses,
        cache_bytes=size,
        cache_entries=entries,
        result=_result(step, compiled),
    )


def _set_switches(spec: TaskSpec) -> None:
    """Switch the caches. Raise TaskFailure (unsupported) where this torch lacks one to be switched off."""
    for knob, (module, name) in _SWITCHES.items():
        config = importlib.import_module(module)  # late: the settings read the environment
        enabled = bool(spec.setting(knob))
        if hasattr(config, name):
            setattr(config, name, enabled)
        elif not enabled:
            reason = f"torch {torch.__version__} has no {module}.{name}"
            raise TaskFailure("unsupported", "no_such_cache", reason)


def _result(step: Step, compiled: Any) -> float:
    """Return the norm of a step's result from the state and the seed that every process begins with."""
    step.restore()
    step.begin()
    torch.manual_seed(SEED)
    tensors = [leaf for leaf in pytree.tree_leaves(compiled()) if isinstance(leaf, torch.Tensor)]
    floating = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    return float(sum(torch.linalg.vector_norm(tensor.double()) for tensor in floating))


def _contents(folder: Path) -> tuple[int, int]:
    """Return the bytes and the number of files in a folder."""
    sizes = [os.lstat(Path(place) / name).st_size for place, _, names in os.walk(folder) for name in names]
    return sum(sizes), len(sizes)
