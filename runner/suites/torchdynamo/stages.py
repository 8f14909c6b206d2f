"""The stages of one experiment, each the work of a fresh process; what they return is JSON.

cold: compile time from nothing, then eager and compiled in turn. warm: compile time from the caches, memory
and GPU time of the compiled step alone. eager: the same of eager mode, and its FLOPs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from runner.catalog import TaskSpec
from runner.failures import TaskFailure
from runner.measure import busy, call_time, counters, doubt, flops, memory
from runner.measure.artifacts import (
    NoReport,
    generated_code,
    memory_history,
    memory_snapshot,
    tlparse_report,
    trace_compiles,
)
from runner.measure.compile_time import FirstCalls, first_calls, start_workers
from runner.measure.device import Device
from runner.measure.device_state import device_state, warning
from runner.measure.gpu_state import GpuState
from runner.measure.kernels import KernelBytes, bandwidths, bytes_counted, kernels, kernels_hash
from runner.measure.recorder import Result
from runner.records import Json
from runner.report import Report
from runner.suites.torchdynamo.accuracy import check
from runner.suites.torchdynamo.backends import Compiler
from runner.suites.torchdynamo.stage_setup import CALL_CLOCK, StageSetup, prepared, told, warmed_toolchain

_CHAINED_CLOCK = "host clock around calls without synchronisation"
_CHAINED_WINDOWS = 10
_CHAINED_BELOW_MS = 10.0  # a longer call hides no launch: a few windows of it say enough
_CHAINED_WINDOWS_OF_LONG = 3
_PAIRS_OF_OTHER_BATCH = 20
_EAGER_CALLS = 3
_COUNTS = (
    *("calls_captured", "unique_graphs", "fallbacks_to_eager", "graph_breaks", "unique_graph_breaks"),
    *("autograd_captures", "autograd_compiles", "cudagraph_skips"),
)


def accuracy(spec: TaskSpec, report: Report, *, fresh: bool) -> Json:  # noqa: ARG001 - as the others
    """Is the compiled step right? By a compile of its own, on a small batch, deterministic."""
    prepared(spec, report.folder)
    compiler = Compiler(spec)
    if compiler.backend.is_inductor:
        start_workers()
    found = check(spec, compiler.step)
    results = []
    if found.rmse_ratio is not None:
        results.append(Result("accuracy_rmse_ratio", [found.rmse_ratio]))
    if found.cosine is not None:
        results.append(Result("accuracy_cosine", [found.cosine]))
    return {
        "results": [told(result) for result in results],
        "status": found.status,
        "code": found.code,
        "facts": {**found.details, **_compiled_by_the_check()},
    }


def _compiled_by_the_check() -> dict[str, Json]:
    """What the harness's accuracy file says beside the word: counts, and dynamo's own compile time."""
    counted = asdict(counters.counts())
    numbers = {name: value for name, value in counted.items() if isinstance(value, int)}
    return {"counts": numbers, "compile_s": counters.entire_compile_s()}


def cold(spec: TaskSpec, report: Report, *, fresh: bool) -> Json:
    """`fresh` caches make the first calls a cold compile."""
    if spec.knobs.get("keep_tlparse"):
        trace_compiles(report.folder / "tlparse")
    setup = StageSetup(spec, report.folder)
    states = [device_state(setup.device)]
    with setup.grad_mode():
        compiler = Compiler(spec)
        if compiler.backend.is_inductor:
            start_workers()
        setup.step.remember()
        setup.eager_once()
        warmed_toolchain(setup, compiler, workers=True)
        loaded = _modules_loaded()
        call = setup.compiled(compiler)
        report.event("compile", label=spec.case)
        first = first_calls(call, setup.device, before_call=setup.step.begin)
        counted = counters.counts()
        _must_be_compiled(compiler, counted)
        results = [_compile_result("cold_compile_s", first, counted)] if fresh else []
        sees = _sees(compiler, counted)
        results += _count_results(counted) if sees else []
        results += _kernel_results(loaded)
        report.event("measure", label=spec.case)
        graphs = counters.unique_graphs()
        states.append(device_state(setup.device))
        results += _call_results(setup, call, first)
        if spec.dynamic:
            results += _other_batch(setup, compiler, call)
        if sees:
            results.append(Result("recompiles", [float(counters.unique_graphs() - graphs)]))
    states.append(device_state(setup.device))
    not_kept = _keep(spec, report, counted, first, loaded)
    warnings = (_skipped_graphs(compiler, counted), warning(states))
    return {
        "results": [told(result) for result in results],
        "about": {**setup.about(), "backend_options": dict(compiler.backend.options), **not_kept},
        "warning": "; ".join(filter(None, warnings)),
        "gpu_states": [asdict(state) for state in states if isinstance(state, GpuState)],
    }


def warm(spec: TaskSpec, report: Report, *, fresh: bool) -> Json:  # noqa: ARG001
    """The compiled step alone, its kernels out of the caches."""
    setup = StageSetup(spec, report.folder)
    on_gpu = spec.device == "cuda"
    with setup.grad_mode():
        compiler = Compiler(spec)
        setup.eager_once()
        warmed_toolchain(setup, compiler, workers=False)
        call = setup.compiled(compiler)
        memory.reset(setup.device)
        moved = KernelBytes()
        keep_history = bool(spec.knobs.get("keep_memory_snapshot")) and on_gpu
        with memory_history(on=keep_history):
            first = first_calls(
                _counting(call, moved) if on_gpu and compiler.backend.is_inductor else call,
                setup.device,
                before_call=setup.step.begin,
            )
            found = memory.peaks(setup.device)
            if keep_history:
                report.artifact("memory_snapshot", "snapshot.pickle", memory_snapshot())
        counted = counters.counts()
        results = [_compile_result("warm_compile_s", first, counted)]
        if counted.caches or compiler.backend.export == "none":
            results += [
                Result("cache_hits", [float(counted.cache_hits)], facts={"caches": counted.caches}),
                Result("cache_misses", [float(counted.cache_misses)], facts={"caches": counted.caches}),
            ]
        results += _memory_results(found, "compiled", setup.device, compiler.backend.export)
        if on_gpu:
            results += _busy_results(setup, call, moved, report)
        elif spec.knobs.get("keep_trace"):
            trace = busy.profiled(call, before_call=setup.step.begin, details=_details(spec))
            report.artifact("trace", "trace.json.gz", busy.compressed(trace))
    return {"results": [told(result) for result in results], "about": setup.about()}


def eager(spec: TaskSpec, report: Report, *, fresh: bool) -> Json:  # noqa: ARG001
    """Eager mode alone."""
    setup = StageSetup(spec, report.folder)
    with setup.grad_mode():
        setup.eager_once()
        memory.reset(setup.device)
        for _ in range(_EAGER_CALLS):
            setup.step.begin()
            setup.eager()
        results = _memory_results(memory.peaks(setup.device), "eager", setup.device, "none")
        counted: Json = None
        if spec.device == "cuda":
            trace = busy.profiled(setup.eager, before_call=setup.step.begin)
            found = busy.busy(trace)
            facts = {"launches": found.launches, "steps": busy.STEPS}
            results.append(Result("eager_gpu_busy_ms", found.steps_ms, busy.CLOCK, facts=facts))
            setup.step.begin()
            counted = asdict(flops.count(setup.eager))
    return {"results": [told(result) for result in results], "about": setup.about(), "flops": counted}


def _must_be_compiled(compiler: Compiler, counted: counters.Counts) -> None:
    """Raises TaskFailure where dynamo captured nothing: eager code has no other name."""
    if compiler.backend.export == "none" and counted.unique_graphs == 0:
        raise TaskFailure("failed", "not_compiled", "dynamo captured no graph: this would be eager code")


def _sees(compiler: Compiler, counted: counters.Counts) -> bool:
    """Whether dynamo's counters tell anything: an exporter may go around it."""
    return compiler.backend.export == "none" or counted.unique_graphs > 0


def _skipped_graphs(compiler: Compiler, counted: counters.Counts) -> str:
    if compiler.backend.cudagraphs and counted.cudagraph_skips:
        return f"CUDA graphs were asked for, and left out {counted.cudagraph_skips} times"
    return ""


def _compile_result(metric: str, first: FirstCalls, counted: counters.Counts) -> Result:
    facts: dict[str, Json] = {
        "first_calls_ms": [round(time_ms, 4) for time_ms in first.compiling_ms],
        "steady_ms": [round(time_ms, 4) for time_ms in first.steady_ms],
        "phases_s": {name: round(seconds, 4) for name, seconds in first.phases_s.items()},
        "caches": counted.caches,
        "compile_threads": _compile_threads(),
    }
    if not first.settled:
        facts["warning"] = "the last call that was tried still compiled something"
    return Result(metric, [first.compile_s], CALL_CLOCK, facts=facts)


def _compile_threads() -> int:
    from torch._inductor import config  # noqa: PLC0415 - not every backend needs inductor

    return int(config.compile_threads)


def _count_results(counted: counters.Counts) -> list[Result]:
    reasons = {"reasons": counted.reasons} if counted.reasons else {}
    return [
        Result(name, [float(getattr(counted, name))], facts=reasons if name == "graph_breaks" else {})
        for name in _COUNTS
    ]


def _modules_loaded() -> int:
    from torch._inductor.codecache import PyCodeCache  # noqa: PLC0415 - not every backend needs inductor

    return len(PyCodeCache.modules)


def _modules(loaded: int) -> list[Any]:
    from torch._inductor.codecache import PyCodeCache  # noqa: PLC0415 - as above

    return list(PyCodeCache.modules[loaded:])


def _kernel_results(loaded: int) -> list[Result]:
    """Nothing for a backend that generates no kernels."""
    found = kernels(_modules(loaded))
    if not found:
        return []
    extern = counters.extern_calls()
    facts = {"kernels_hash": kernels_hash(found), "generated": len(found), "extern_calls": extern}
    return [Result("kernel_count", [float(len(found) + extern)], facts=facts)]


def _call_results(setup: StageSetup, call: Callable[[], Any], first: FirstCalls) -> list[Result]:
    spec, step = setup.spec, setup.step
    repeats, budget_s = spec.setting("repeat"), spec.setting("budget_s")
    calls = spec.setting("iterations_per_run")
    assert isinstance(repeats, int)
    assert isinstance(budget_s, int)
    assert isinstance(calls, int)
    times = call_time.paired(
        setup.eager,
        call,
        setup.device,
        at_least=repeats,
        budget_s=float(budget_s),
        before_ten=step.restore,
        before_pair=setup.before_pair,
        before_call=step.begin,
        calls=calls,
        warm_calls=2,
    )
    results = _pair_results(times, "speedup", "eager_latency_ms", "compiled_latency_ms")
    step.restore()
    short = min(first.steady_ms) < _CHAINED_BELOW_MS
    windows = _CHAINED_WINDOWS if short else _CHAINED_WINDOWS_OF_LONG
    chained = call_time.back_to_back_ms(call, setup.device, windows=windows)
    return [*results, Result("back_to_back_latency_ms", chained, _CHAINED_CLOCK)]


def _pair_results(
    times: call_time.PairedTimes, speedup: str, eager_ms: str, compiled_ms: str
) -> list[Result]:
    return [
        Result(speedup, [times.speedup], CALL_CLOCK, n=len(times.eager), facts=doubt.facts(times)),
        Result(eager_ms, times.eager, CALL_CLOCK),
        Result(compiled_ms, times.compiled, CALL_CLOCK),
    ]


def _other_batch(setup: StageSetup, compiler: Compiler, call: Callable[[], Any]) -> list[Result]:
    """Three quarters of the batch, by the code that was compiled for the whole of it."""
    sizes = setup.model.batch_sizes()
    if len(sizes) < 2:
        return []
    whole = setup.model.inputs
    setup.model.inputs = setup.model.inputs_at(sizes[1])
    compiler.mark_dynamic_inputs(setup.model, setup.model.inputs)
    try:
        times = call_time.paired(
            setup.eager,
            call,
            setup.device,
            at_least=_PAIRS_OF_OTHER_BATCH,
            budget_s=0.0,
            before_ten=setup.step.restore,
            before_pair=setup.before_pair,
            before_call=setup.step.begin,
        )
    finally:
        setup.model.inputs = whole
    found = _pair_results(
        times, "speedup_other_batch", "eager_latency_other_batch_ms", "compiled_latency_other_batch_ms"
    )
    for result in found:
        assert isinstance(result.facts, dict)
        result.facts["other_batch_size"] = sizes[1]
    return found


def _memory_results(found: memory.Peaks, who: str, device: Device, export: str) -> list[Result]:
    twice = {"note": "the package holds a copy of the weights"} if export == "aot_inductor" else {}
    if device.type == "cpu":
        name = "peak_rss_bytes" if who == "compiled" else "eager_peak_rss_bytes"
        return [Result(name, [float(found.resident)], "VmHWM after clearing it", facts=twice)]
    results = [
        Result(
            f"{who}_peak_memory_bytes", [float(found.allocated)], "allocator, peak allocated", facts=twice
        ),
        Result(f"{who}_peak_reserved_bytes", [float(found.reserved)], "allocator, peak reserved"),
    ]
    if who == "compiled":
        results.append(Result("private_pool_bytes", [float(found.private_pools)], "allocator's snapshot"))
    return results


def _counting(call: Callable[[], Any], moved: KernelBytes) -> Callable[[], Any]:
    """The call, of which the first one counts the bytes of its kernels."""
    calls = 0

    def counting() -> Any:
        nonlocal calls
        calls += 1
        with bytes_counted(moved) if calls == 1 else contextlib.nullcontext():
            return call()

    return counting


def _details(spec: TaskSpec) -> bool:
    return bool(spec.knobs.get("profile_details"))


def _busy_results(
    setup: StageSetup, call: Callable[[], Any], moved: KernelBytes, report: Report
) -> list[Result]:
    trace = busy.profiled(call, before_call=setup.step.begin)
    found = busy.busy(trace)
    if setup.spec.knobs.get("keep_trace"):
        if _details(setup.spec):
            trace = busy.profiled(call, before_call=setup.step.begin, details=True)
        report.artifact("trace", "trace.json.gz", busy.compressed(trace))
    table = bandwidths(found.kernels_ms, moved.by_name)
    report.artifact("kernels", "kernels.json", json.dumps(asdict(table), indent=1))
    facts = {"launches": found.launches, "steps": busy.STEPS}
    covered = {"clock_of_bytes": "sizes of the operands of Triton kernels"}
    return [
        Result("gpu_busy_ms", found.steps_ms, busy.CLOCK, facts=facts),
        Result("triton_time_share", [table.covered], busy.CLOCK, facts=covered),
    ]


def _keep(
    spec: TaskSpec, report: Report, counted: counters.Counts, first: FirstCalls, loaded: int
) -> dict[str, Json]:
    """Artifacts of the compile, and a word for the records of those that were asked for and cannot be."""
    lacking = []
    if counted.reasons:
        report.artifact("graph_breaks", "graph_breaks.json", json.dumps(counted.reasons, indent=1))
    phases = dict(sorted(first.phases_s.items(), key=lambda row: -row[1]))
    report.artifact("compile_phases", "compile_phases.json", json.dumps(phases, indent=1))
    if spec.knobs.get("keep_code"):
        code = generated_code(_modules(loaded))
        if code:
            report.artifact("generated_code", "code.txt", code)
        else:
            lacking.append("keep_code: inductor generated no code")
    if spec.knobs.get("keep_tlparse"):
        try:
            report.artifact("tlparse", "tlparse.tar.gz", tlparse_report(report.folder / "tlparse"))
        except NoReport as why:  # a measurement needs none
            lacking.append(f"keep_tlparse: no report, {why}")
    return {"not_kept": lacking} if lacking else {}


PARTS: dict[str, Callable[..., Json]] = {"accuracy": accuracy, "cold": cold, "warm": warm, "eager": eager}
