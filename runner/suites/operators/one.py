"""Measures one recorded call: compiled, compared with eager, timed by three clocks."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import same
from torch._inductor import metrics
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.utils import gen_gm_and_inputs, timed

from runner.launch.failures import TaskFailure, failure_of
from runner.measure.ceilings import gbps
from runner.measure.compiler import toolchain
from runner.measure.compiler.counters import extern_calls, modules
from runner.measure.kernels import tuning
from runner.measure.kernels.produced import produced, profiled_steps
from runner.measure.recorder import Result
from runner.measure.state.device import SEED, Device, prepare
from runner.measure.timing import call_time, gpu_active_time, graph_replay
from runner.measure.timing.call_time import TimingPlan, interleaved_timings, latency_results
from runner.measure.timing.compile_time import forget_compiles
from runner.measure.timing.graph_replay import ReplayPlan
from runner.schema.records import Json
from runner.schema.suite import TaskSpec
from runner.suites.operators import tensors
from runner.suites.operators.inputs import Call
from runner.suites.torchdynamo.model import tensors_in

# operatorbench's configurations, as patches of inductor's.
CONFIGURATIONS: dict[str, dict[str, bool]] = {
    "inductor": {},
    "autotune": dict.fromkeys(
        ("max_autotune_pointwise", "max_autotune", "max_autotune_gemm", "coordinate_descent_tuning"), True
    ),
}
UPSTREAM_CLOCK = {
    "cuda": "inductor benchmarker, as operatorbench: least of up to 100 calls, cache overwritten",
    "cpu": "one call, as operatorbench",
}
OPERATORBENCH_MS = "operatorbench_ms"  # eager and compiled by its clock; read by the writer of its files
_UPSTREAM_REPEATS = 3
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 1e-2}
_BUDGET_S = 0.4
_MEMORY_SHARE = 0.4  # of the free memory, for the arguments
_CAPTURES = 2  # of graph replay: two allocations of the operands
_WARM_MS = 20.0
# Operators that wait for the device, so that their calls cannot be captured.
_SYNCHRONISES = ("nonzero", "masked_select", "unique", "_local_scalar_dense", "item", "repeat_interleave")
_BY_MASK = ("index.Tensor", "index_put")  # so do these with a boolean index

Function = Callable[..., Any]


@dataclass
class Measured:
    """The results of one call; `no_device` is why its graph could not be replayed, `trace` the profiler's."""

    results: list[Result]
    numbers: dict[str, Json]  # for the quantiles over calls
    code: dict[str, str]  # of kernels, by binary
    no_device: TaskFailure | None
    trace: dict[str, Json] | None


def measure(call: Call, spec: TaskSpec, device: Device) -> Measured:
    """Compile one call, check it and time it. Raise TaskFailure if that is impossible or the result wrong.

    A further compilation is neither checked again nor timed by operatorbench's clock.
    """
    made, module = _made(call, spec, device)
    eager, operands, changed = made.eager, made.operands, made.changed
    compiled, first_call_s = _compiled(module, made, spec.backend)
    about: dict[str, Json] = {
        "inputs": call.text[:1000],
        "calls_in_models": call.count,
        "first_call_s": first_call_s,
    }
    checked: dict[str, Json] = {}
    if not spec.compilation:
        checked["accuracy"] = _checked(made, compiled, _TOLERANCE[getattr(torch, spec.dtype)])
    moved = tensors.moved_bytes(call.operator, operands, tensors_in(eager(*made.fresh())))
    pristine = [operands[place].clone() for place in changed]

    def refresh() -> None:
        for place, original in zip(changed, pristine, strict=True):
            operands[place].copy_(original)

    plan = TimingPlan(spec.number("repeat"), _BUDGET_S, before_call=refresh)
    times = interleaved_timings(lambda: eager(*operands), lambda: compiled(*operands), device, plan)
    numbers: dict[str, Json] = {"call": times.speedup, "call_quality": call_time.warning(times).quality}
    if not spec.compilation:
        numbers["upstream"] = [_upstream_ms(function, operands, device) for function in (eager, compiled)]
        about[OPERATORBENCH_MS] = numbers["upstream"]
    refresh()
    on_device: list[Result] = []
    no_device = None
    if device.type == "cuda" and spec.setting("graph_replay"):
        try:
            on_device = _replayed(made, compiled, device, moved, checked)
            numbers["device"] = on_device[-1].values[0]
        except Exception as error:  # noqa: BLE001 - call time stands
            no_device = failure_of(error)
    found = produced(modules(), profiled_steps(lambda: compiled(*operands), device, refresh))
    trace = None
    if spec.setting("keep_trace") and not spec.compilation:
        trace = gpu_active_time.profile(lambda: compiled(*operands), before_call=refresh)
    refresh()
    latencies = latency_results(times, call_time.CLOCK)
    kernel_count = found.count(extern_calls(), latencies, **checked)
    results = [
        dataclasses.replace(result, facts={**result.facts, **about})
        for result in (*latencies, kernel_count, *on_device)
    ]
    return Measured(results, numbers, found.code, no_device, trace)


def again(spec: TaskSpec, call: Call) -> str:
    """Compile one call as `measure` does, but through dynamo, and check it; return ok, or raise likewise."""
    device = prepare(spec.device)
    torch.manual_seed(SEED)
    with torch.no_grad():
        made, module = _made(call, spec, device)
        compiled = torch.compile(module, dynamic=False, options=CONFIGURATIONS[spec.backend])
        _checked(made, compiled, _TOLERANCE[getattr(torch, spec.dtype)])
    return "ok"


@dataclass(frozen=True)
class _Made:
    """An operator with its operands; it writes to those at the places `changed`."""

    operator: Any
    eager: Function
    operands: tuple[torch.Tensor, ...]
    changed: list[int]

    def fresh(self, operands: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        """Return the operands, or others like them, with copies of those that are written to."""
        given = operands or self.operands
        return [one.clone() if place in self.changed else one for place, one in enumerate(given)]

    def on_copies(self, function: Function) -> Function:
        return (lambda *given: function(*self.fresh(given))) if self.changed else function

    def results(self, function: Function, operands: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        """Return the outputs and the operands that were written to."""
        given = self.fresh(operands)
        return [*tensors_in(function(*given)), *(given[place] for place in self.changed)]

    @property
    def synchronises(self) -> bool:
        name = str(self.operator).removeprefix("aten.")
        by_mask = name.startswith(_BY_MASK) and any(operand.dtype == torch.bool for operand in self.operands)
        return by_mask or name.startswith(_SYNCHRONISES)


def _made(call: Call, spec: TaskSpec, device: Device) -> tuple[_Made, torch.fx.GraphModule]:
    """Return the operator with its operands, and a module of it to compile."""
    operator = tensors.operator_of(call.operator)
    if tensors.memory_needed(call) > _MEMORY_SHARE * device.free_bytes():
        raise TaskFailure("oom", "out_of_memory", "its arguments do not fit into the free memory")
    dtype: torch.dtype = getattr(torch, spec.dtype)
    channels_last = bool(spec.setting("channels_last"))
    args, kwargs = tensors.make(call, dtype, device.type, channels_last=channels_last)
    eager, operands = gen_gm_and_inputs(operator, args, kwargs)
    written = [
        value
        for value, argument in zip(args, operator._schema.arguments, strict=False)
        if argument.alias_info and argument.alias_info.is_write and isinstance(value, torch.Tensor)
    ]
    changed = [place for place, operand in enumerate(operands) if any(operand is one for one in written)]
    module, _operands = gen_gm_and_inputs(operator, args, kwargs)
    return _Made(operator, eager, tuple(operands), changed), module


def _compiled(module: torch.fx.GraphModule, made: _Made, configuration: str) -> tuple[Function, float]:
    """Compile with inductor directly, as operatorbench: no guards of dynamo around a call of microseconds.
    Return the function and seconds."""
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 - may start compile workers

    toolchain.share()
    tuning.watch()
    forget_compiles()
    metrics.reset()
    started = time.perf_counter()
    compiled = compile_fx(module, list(made.operands), config_patches=CONFIGURATIONS[configuration])
    compiled(*made.fresh())
    return compiled, time.perf_counter() - started


def _checked(made: _Made, compiled: Function, tolerance: float) -> str:
    """Return how the results were compared. Raise TaskFailure (wrong), by the rule of torch's own `same`."""
    if torch.Tag.nondeterministic_seeded in made.operator.tags:
        return "not compared: its result is random"
    expected, found = made.results(made.eager), made.results(compiled)
    if same(expected, found, tol=tolerance, equal_nan=True):
        return f"equal within {tolerance:g}"
    exact = [operand.double() if operand.is_floating_point() else operand for operand in made.operands]
    try:
        reference = made.results(made.eager, exact)
    except RuntimeError as error:
        raise TaskFailure("wrong", "fail_accuracy", f"differs from eager; no float64: {error}") from error
    if not same(expected, found, fp64_ref=reference, tol=tolerance, equal_nan=True):
        raise TaskFailure("wrong", "fail_accuracy", "differs from eager by more than its rounding explains")
    return "as far from float64 as eager"


def _upstream_ms(function: Function, operands: Sequence[torch.Tensor], device: Device) -> float:
    """Return operatorbench's number: on CUDA the benchmarker's least, on a CPU one call; median of three."""
    samples = []
    for _ in range(_UPSTREAM_REPEATS):
        if device.type == "cuda":
            function(*operands)
            samples.append(float(benchmarker.benchmark_gpu(lambda: function(*operands))))
        else:
            samples.append(timed(function, operands) * 1e3)
    return statistics.median(samples)


def _replayed(
    made: _Made, compiled: Function, device: Device, moved_bytes: int, checked: dict[str, Json]
) -> list[Result]:
    """Return device times, the last of them the speedup. Raise TaskFailure for an operator that waits.

    An operator that writes in place runs on fresh copies, whose own time is subtracted, and stands in
    `checked`.
    """
    if made.synchronises:
        reason = "the operator waits for the device, so its call is no graph: call time only"
        raise TaskFailure("unsupported", "host_synchronisation", reason)
    plan = ReplayPlan(moved_bytes, captures=_CAPTURES, warm_ms=_WARM_MS)

    def copies(*given: torch.Tensor) -> list[torch.Tensor]:
        return [given[place].clone() for place in made.changed]

    eager, candidate = made.on_copies(made.eager), made.on_copies(compiled)
    times = graph_replay.replay(eager, candidate, made.operands, device, plan)
    if made.changed:
        alone = graph_replay.replay(copies, copies, made.operands, device, plan)
        copy_ms = statistics.median(alone.eager + alone.compiled)
        checked["refresh_ms"] = copy_ms
        # never zero: what is lost in the copy's own noise counts as a nanosecond
        eager_ms, compiled_ms = (
            [max(sample_ms - copy_ms, 1e-6) for sample_ms in samples_ms]
            for samples_ms in (times.eager, times.compiled)
        )
        times = dataclasses.replace(times, eager=eager_ms, compiled=compiled_ms)
    clock, facts = graph_replay.CLOCK, {"moved_bytes": moved_bytes, **times.facts}
    return [
        Result("eager_device_latency_ms", times.eager, clock),
        Result("device_latency_ms", times.compiled, clock, facts=facts),
        Result("device_bandwidth_gbps", gbps(moved_bytes, times.compiled), clock, facts=facts),
        Result("device_speedup", [times.speedup], clock, n=len(times.compiled)),
    ]
