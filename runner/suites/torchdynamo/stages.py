"""The stages of one task, each run in a fresh process; their answers are pickled.

accuracy: the check, by a compile of its own. cold: compile time with empty caches, eager and compiled in
turn, and the compiled step's kernels and GPU time. warm: compile time with full caches, and memory of the
compiled step alone. eager: memory and GPU time of eager mode, and its FLOPs. A further compilation has the
stage cold alone.
"""

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.utils import calculate_time_spent
from torch._inductor import config

from runner.formats.torchdynamo.names import backend_of
from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure import ceilings, memory
from runner.measure.compiler import counters
from runner.measure.compiler.counters import blind, note
from runner.measure.kernels import lines, pinning, tuning
from runner.measure.kernels.produced import keep_code, produced
from runner.measure.recorder import Result
from runner.measure.state.device import Device, device_state, environment, keep_gpu_states, prepare, warning
from runner.measure.timing import call_time, compile_time, gpu_active_time
from runner.measure.timing.call_time import PairedTimes, TimingPlan, interleaved_timings, latency_results
from runner.measure.timing.compile_time import FirstCalls
from runner.schema.compilations import Note, blind_text
from runner.schema.records import Environment, Json, MeasurementWarning, joined_warnings
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.accuracy import check
from runner.suites.torchdynamo.backends import Compiler
from runner.suites.torchdynamo.model import LoadedModel, Step, load

_CHAINED_WINDOWS = 10
_CHAINED_BELOW_MS = 10.0  # a longer call hides no launch: a few windows of it say enough
_CHAINED_WINDOWS_OF_LONG = 3
_PAIRS_OF_OTHER_BATCH = 20
_EAGER_CALLS = 3


class StageSetup:
    """The device, model and steps of a stage. Made in the stage's own process."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.device = prepare_device(spec)
        self.model: LoadedModel = load(spec)
        self.step = Step(self.model, spec)

    def eager(self) -> Any:
        return self.step.function(self.model.inputs)

    def eager_once(self) -> None:
        """Load libraries and fill eager mode's own caches, so that nobody's first call pays for them."""
        self.step.begin()
        self.eager()
        self.step.begin()
        self.device.synchronize()

    def before_pair(self) -> None:
        """Make the inputs of the next pair of calls."""
        if self.spec.knobs.get("randomize_input"):
            self.model.new_values()

    def timings(self, call: Callable[[], Any], **limits: Any) -> PairedTimes:
        """Time eager and compiled in turn, from equal states; `limits` are fields of TimingPlan."""
        plan = TimingPlan(
            before_ten=self.step.restore, before_pair=self.before_pair, before_call=self.step.begin, **limits
        )
        return interleaved_timings(self.eager, call, self.device, plan)

    def compiled(self, compiler: Compiler) -> Callable[[], Any]:
        """Return a call of the compiled step; nothing is compiled yet."""
        compiler.mark_dynamic(self.model)
        step = compiler.step(self.step)
        return lambda: step(self.model.inputs)

    def about(self) -> dict[str, Json]:
        """Return the facts that stand beside every number."""
        model = self.model
        return {
            "batch_size": model.batch_size,
            "parameters": model.parameters,
            "matmul_precision": torch.get_float32_matmul_precision(),
            "half_attention_sums": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
            **({"size_note": model.size_note} if model.size_note else {}),
        }


def prepare_device(spec: TaskSpec) -> Device:
    """Set this process up with the task's threads and settings."""
    threads = spec.knobs.get("threads")
    device = prepare(spec.device, threads if isinstance(threads, int) else None)
    torch.set_float32_matmul_precision("high" if spec.device == "cuda" else "highest")
    # As the harness: attention that is spelled out sums in its own type, not in float32.
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    if spec.knobs.get("deterministic"):
        torch.use_deterministic_algorithms(True)
    if spec.device == "cuda" and (percent := spec.number("memory_percent")) < 100:
        torch.cuda.set_per_process_memory_fraction(percent / 100)
    return device


def place(spec: TaskSpec) -> tuple[Device, Environment]:
    """Return the device and the environment for the process that records, which must not ask for them."""
    device = prepare_device(spec)
    return device, environment(device)


def warm_compiler(setup: StageSetup, compiler: Compiler, *, workers: bool) -> None:
    """Start the compilers, let them compile something small, and set every counter to 0."""
    if compiler.backend.export == "none":
        workers = workers and compiler.backend.is_inductor
        compile_time.warm_toolchain(setup.device, compiled=compiler.function, workers=workers)
    compile_time.forget_compiles()
    gc.collect()


def accuracy(spec: TaskSpec) -> Json:
    """Check the compiled step on a small batch, deterministic, by a compile of its own."""
    prepare_device(spec)
    compiler = Compiler(spec)
    if compiler.backend.is_inductor:
        compile_time.start_workers()
    found = check(spec, compiler.step)
    values = {"accuracy_rmse_ratio": found.rmse_ratio, "accuracy_cosine": found.cosine}
    # what the harness's accuracy file says beside the word: counts, and seconds of whole compiles
    compile_s = float(calculate_time_spent().get("total_wall_time", 0.0))
    return {
        "results": [Result(name, [value]) for name, value in values.items() if value is not None],
        "status": found.status,
        "code": found.code,
        "facts": {**found.details, "counts": counters.counts().harness, "compile_s": compile_s},
    }


def cold(spec: TaskSpec, report: Report, *, fresh: bool) -> Json:
    """Compile, then measure eager and compiled in turn; `fresh` caches make the first calls a cold compile.

    Raise TaskFailure where dynamo captured nothing: that would be eager code under another name.
    """
    if backend_of(spec).is_inductor:
        compile_time.start_workers()  # they import torch while the model is made
    setup = StageSetup(spec)
    states = [device_state(setup.device)]
    with torch.set_grad_enabled(spec.mode == "training"):
        compiler = Compiler(spec)
        if compiler.backend.is_inductor:
            tuning.watch()
        setup.step.remember()
        setup.eager_once()
        warm_compiler(setup, compiler, workers=True)
        call = setup.compiled(compiler)
        report.event("compile", label=spec.case)
        first = compile_time.first_calls(call, setup.device, before_call=setup.step.begin)
        counted = counters.counts()
        graphs = counted.harness["unique_graphs"]
        if not graphs and compiler.backend.export == "none":
            raise TaskFailure("failed", "not_compiled", "dynamo captured no graph: this would be eager code")
        results = [_compile_result("cold_compile_s", first, counted)] if fresh else []
        if graphs:  # an exporter may go around dynamo, whose counters then say nothing
            reasons = {"graph_breaks": {"reasons": counted.reasons}} if counted.reasons else {}
            results += [
                Result(name, [float(count)], facts=reasons.get(name, {}))
                for name, count in counted.harness.items()
            ]
        modules, extern = counters.modules(), counters.extern_calls()
        before = counters.recompiles()
        report.event("measure", label=spec.case)
        states.append(device_state(setup.device))
        called = _call_results(setup, call, first)
        results += [*called, *_token_results(setup.model, called)]
        if spec.dynamic and not spec.compilation:
            results += _other_batch(setup, compiler, call)
        if graphs:
            results.append(_recompiles_result(counters.unique_graphs() - graphs, before))
        results += _kernel_results(setup, call, modules, called, extern=extern, report=report)
    states.append(device_state(setup.device))
    keep_gpu_states(report, states)
    if counted.reasons:
        report.artifact("graph_breaks", "graph_breaks.json", json.dumps(counted.reasons, indent=1))
    phases = dict(sorted(first.phases_s.items(), key=lambda row: -row[1]))
    report.artifact("compile_phases", "compile_phases.json", json.dumps(phases, indent=1))
    skips = counted.harness["cudagraph_skips"] if compiler.backend.cudagraphs else 0
    skipped = f"CUDA graphs were asked for, and left out {skips} times" if skips else ""
    names_blind = any(result.metric == "kernel_count" for result in results)  # in that record
    of_compilation = (pinning.pinned_warning(), "" if names_blind else blind_text(blind))
    return {
        "results": results,
        "about": {
            **setup.about(),
            "backend_options": dict(compiler.backend.options),
            **pinning.pinned_facts(),
        },
        "warning": joined_warnings((MeasurementWarning(skipped), warning(states))),
        "warning_of_all": "; ".join(filter(None, of_compilation)),
    }


def one_step(spec: TaskSpec) -> None:
    """Run a step in eager mode."""
    with torch.set_grad_enabled(spec.mode == "training"):
        StageSetup(spec).eager_once()


def compiles(spec: TaskSpec) -> None:
    """Compile the step as `cold` does and call it once: what is repeated to explain a failure of `cold`."""
    setup = StageSetup(spec)
    with torch.set_grad_enabled(spec.mode == "training"):
        call = setup.compiled(Compiler(spec))
        setup.step.begin()
        call()


def warm(spec: TaskSpec, report: Report) -> Json:
    """Measure the compiled step alone, its kernels taken from the caches."""
    setup = StageSetup(spec)
    on_gpu = spec.device == "cuda"
    with torch.set_grad_enabled(spec.mode == "training"):
        compiler = Compiler(spec)
        if compiler.backend.is_inductor:
            lines.ask()  # as `tuning.watch` did: without, no graph in the caches has the same key
        setup.eager_once()
        warm_compiler(setup, compiler, workers=False)
        call = setup.compiled(compiler)
        memory.reset(setup.device)
        keep_history = bool(spec.knobs.get("keep_memory_snapshot")) and on_gpu
        with memory.history() if keep_history else contextlib.nullcontext():
            first = compile_time.first_calls(call, setup.device, before_call=setup.step.begin)
            twice = compiler.backend.export == "aot_inductor"
            note = "the package holds a copy of the weights" if twice else ""
            peaks = memory.peaks(setup.device, "compiled", note)
            if keep_history:
                report.artifact("memory_snapshot", "snapshot.pickle", memory.snapshot())
        counted = counters.counts()
        results = [_compile_result("warm_compile_s", first, counted)]
        if counted.caches or compiler.backend.export == "none":
            facts = {"caches": counted.caches}
            results.append(Result("cache_hits", [float(counted.cache_hits)], facts=facts))
            results.append(Result("cache_misses", [float(counted.cache_misses)], facts=facts))
        results += peaks
    return {"results": results, "about": setup.about()}


def eager(spec: TaskSpec) -> Json:
    """Measure eager mode alone; on CUDA count its FLOPs too."""
    setup = StageSetup(spec)
    with torch.set_grad_enabled(spec.mode == "training"):
        setup.eager_once()
        memory.reset(setup.device)
        for _ in range(_EAGER_CALLS):
            setup.step.begin()
            setup.eager()
        results = memory.peaks(setup.device, "eager")
        counted: Json = None
        if spec.device == "cuda":
            begin = setup.step.begin
            found, _trace = gpu_active_time.at_full_clock(setup.eager, setup.device, before_call=begin)
            facts = {"launches": found.launches, "steps": len(found.steps)}
            results.append(Result("eager_gpu_busy_ms", found.steps_ms, gpu_active_time.CLOCK, facts=facts))
            setup.step.begin()
            counted = ceilings.count_flops(setup.eager)
    return {"results": results, "about": setup.about(), "flops": counted}


def _compile_result(metric: str, first: FirstCalls, counted: counters.Counts) -> Result:
    facts: dict[str, Json] = {
        "first_calls_ms": [round(time_ms, 4) for time_ms in first.compiling_ms],
        "steady_ms": [round(time_ms, 4) for time_ms in first.steady_ms],
        "phases_s": {name: round(seconds, 4) for name, seconds in first.phases_s.items()},
        "caches": counted.caches,
        "compile_threads": int(config.compile_threads),
    }
    if not first.settled:
        facts["warning"] = "the last call that was tried still compiled something"
    return Result(metric, [first.compile_s], call_time.CLOCK, facts=facts)


def _token_results(model: LoadedModel, called: Sequence[Result]) -> list[Result]:
    """Return tokens per second of a language model's compiled step, and the time to its first token."""
    if not model.tokens:
        return []
    (compiled,) = (result for result in called if result.metric == "compiled_latency_ms")
    per_second = [1000 * model.tokens / time_ms for time_ms in compiled.values]
    first = [replace(compiled, metric="time_to_first_token_ms")] if model.answers_prompt else []
    return [replace(compiled, metric="token_per_sec", values=per_second), *first]


def _recompiles_result(count: int, before: Sequence[Note]) -> Result:
    """Return the recompiles after the first calls, with the guards that failed since."""
    failed = Counter({(note.reason, note.place): note.count for note in counters.recompiles()})
    failed -= Counter({(note.reason, note.place): note.count for note in before})
    reasons = {f"{reason} in {place}": times for (reason, place), times in failed.items()}
    return Result("recompiles", [float(count)], facts={"reasons": reasons} if reasons else {})


def _kernel_results(
    setup: StageSetup,
    call: Callable[[], Any],
    modules: list[Any],
    called: list[Result],
    *,
    extern: int,
    report: Report,
) -> list[Result]:
    """Profile the compiled step and return its GPU time and its kernels; none for a backend that generates
    none. `called` are the call times, `extern` the operators that inductor left to libraries."""
    busy = None
    with note("kernels"):
        busy = _profiled(setup, call, report)
    results: list[Result] = []
    contents = produced(modules, busy.steps if busy else ())
    if busy:
        launches = {"launches": busy.launches, "steps": len(busy.steps)}
        results.append(Result("gpu_busy_ms", busy.steps_ms, gpu_active_time.CLOCK, facts=launches))
        if contents.generated:
            covered = {
                "clock_of_bytes": "sizes of the operands of Triton kernels",
                "with_library": contents.known_share(generated_only=False),
            }
            share = contents.known_share(generated_only=True)
            results.append(Result("triton_time_share", [share], gpu_active_time.CLOCK, facts=covered))
    if contents.generated == []:
        return results
    keep_code(report, contents.code)
    return [*results, contents.count(extern, called, generated=len(contents.generated or ()))]


def _profiled(
    setup: StageSetup, call: Callable[[], Any], report: Report
) -> gpu_active_time.GpuActiveTime | None:
    """Profile the step and keep the trace if asked for; None on a CPU, where it has no kernels."""
    keep = setup.spec.knobs.get("keep_trace")
    details = bool(keep and setup.spec.knobs.get("profile_details"))
    found = trace = None
    if setup.spec.device == "cuda":
        found, trace = gpu_active_time.at_full_clock(call, setup.device, before_call=setup.step.begin)
    if keep and (trace is None or details):
        trace = gpu_active_time.profile(call, before_call=setup.step.begin, details=details)
    gpu_active_time.keep_trace(report, trace if keep else None)
    return found


def _call_results(setup: StageSetup, call: Callable[[], Any], first: FirstCalls) -> list[Result]:
    spec = setup.spec
    times = setup.timings(
        call,
        at_least=spec.setting("repeat"),
        # a further compilation adds to the spread over compilations: nobody asks it for 0.5 %
        budget_s=0.0 if spec.compilation else spec.setting("budget_s"),
        calls=spec.setting("iterations_per_run"),
        warm_calls=2,
    )
    setup.step.restore()
    short = min(first.steady_ms) < _CHAINED_BELOW_MS
    windows = _CHAINED_WINDOWS if short else _CHAINED_WINDOWS_OF_LONG
    chained = call_time.pipelined_ms(call, setup.device, windows=windows)
    return [
        *latency_results(times, call_time.CLOCK),
        Result("back_to_back_latency_ms", chained, call_time.PIPELINED_CLOCK),
    ]


def _other_batch(setup: StageSetup, compiler: Compiler, call: Callable[[], Any]) -> list[Result]:
    """Measure three quarters of the batch by the code that was compiled for the whole of it."""
    smaller = setup.model.smaller_batch()
    if smaller == setup.model.batch_size:
        return []
    whole = setup.model.inputs
    setup.model.inputs = setup.model.inputs_at(smaller)
    compiler.mark_dynamic(setup.model)
    try:
        times = setup.timings(call, at_least=_PAIRS_OF_OTHER_BATCH, budget_s=0.0)
    finally:
        setup.model.inputs = whole
    return latency_results(times, call_time.CLOCK, "_other_batch", other_batch_size=smaller)
