"""gpt-fast's models: tokens by time, the weights' bandwidth, compile time cold and warm.

Two processes share fresh caches: the first compiles cold, the second warm. The second then checks the
compiled steps against eager ones, times whole sequences as gpt-fast does, single steps in turn with eager
ones, and on a GPU the active time of a step. A further compilation is one process, which compiles cold and
measures, without the check.
"""

import dataclasses
import math
import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure import ceilings, memory, turns
from runner.measure.compiler import counters
from runner.measure.compiler.bisection import explained
from runner.measure.compiler.counters import graph_facts
from runner.measure.forked import T, run_stage
from runner.measure.kernels import tuning
from runner.measure.kernels.produced import keep_code, produced
from runner.measure.recorder import Recorder, Result, with_gpt_fast_target
from runner.measure.state.device import Device, device_state, keep_gpu_states, prepare, warning
from runner.measure.timing import call_time, compile_time, gpu_active_time
from runner.measure.timing.call_time import TimingPlan, interleaved_timings, latency_results
from runner.measure.timing.compile_time import FirstCalls
from runner.measure.timing.gpu_active_time import Work
from runner.schema.compilations import COMPILED
from runner.schema.metrics import STEP_METRICS
from runner.schema.options import EXPLAIN
from runner.schema.records import Json, MeasurementWarning, joined_warnings
from runner.schema.statistics import median
from runner.schema.suite import TaskSpec
from runner.schema.tasks import KEPT_CACHES, NEW_CACHES
from runner.suites.gpt_fast import COMPILE_METRICS, DEVICE_METRICS, SEQUENCE_METRICS, metrics_of
from runner.suites.gpt_fast.generate import Steps, compare, compiled, sequence, steps
from runner.suites.gpt_fast.model import SHAPES, Transformer, quantise, weight_bytes

_ROUND = 8  # the KV cache's length is a multiple of it, as gpt-fast's
_CLOCK = "host clock around a sequence"
_GRAPHS = 2  # prefill and decode
_MEMORY_SHARE = 0.9
_EXPLAIN_SHARE = 0.8  # of the time that is left after a failure
Cold = tuple[FirstCalls, dict[str, Json]]  # of the process that compiles cold, with the facts of its graphs


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Measure one model in one type of weights. A wrong result, like any failure, leaves no number."""
    ends = turns.clock_s() + spec.timeout_s
    kept, new = os.environ.get(KEPT_CACHES), os.environ.get(NEW_CACHES)
    caches = Path(kept or new or report.folder / "caches")
    asked = spec.setting("caches") == "fresh"
    once = not asked or bool(kept) or spec.compilation > 0

    def stage(name: str, work: Callable[[], T], limit_s: float = math.inf) -> T:
        variables = compile_time.cache_variables(caches / spec.fingerprint()) if asked else {}
        left_s = min(limit_s, max(1.0, ends - turns.clock_s()))
        return run_stage(name, work, folder=report.folder, variables=variables, timeout_s=left_s)

    def compile_cold() -> Cold:
        return _build_and_compile(spec, report, "cold")[1], graph_facts().to_json()

    try:
        cold = None if once else stage("cold", compile_cold)
        return stage("warm", lambda: _measure(spec, report, cold))
    except TaskFailure as failure:
        limit_s = min(spec.number(EXPLAIN), _EXPLAIN_SHARE * (ends - turns.clock_s()))
        problem, facts = explained(
            failure, lambda left_s: stage("again", lambda: compile_all(spec), left_s), limit_s
        )
        recorder = Recorder(spec, report, prepare(spec.device))
        recorder.missing(metrics_of(spec, kept=bool(kept)), problem, facts, knobs=spec.identity())
        return problem
    finally:
        shutil.rmtree(report.folder / "caches", ignore_errors=True)


class _Generator:
    """A model, a prompt, and its steps in eager mode and compiled."""

    def __init__(self, spec: TaskSpec, device: Device) -> None:
        self.prompt_tokens = spec.number("prompt")
        self.new_tokens = spec.number("new_tokens")
        self.device = device
        self.model = _build_model(spec, self.prompt_tokens + self.new_tokens, device)
        self.profiled: list[list[Work]] = []  # decode steps
        self.called: list[Result] = []  # call times of these
        vocabulary = self.model.shape.vocabulary
        self.prompt = torch.randint(vocabulary, (self.prompt_tokens,), device=device.type)
        temperature = spec.number("temperature_percent") / 100
        self.eager: Steps = steps(temperature=temperature, top_k=spec.number("top_k"))
        self.compiled: Steps = compiled(
            self.eager,
            cudagraphs=device.type == "cuda" and bool(spec.setting("cudagraphs")),
            coordinate_descent_tuning=bool(spec.setting("coordinate_descent_tuning")),
        )

    def check(self) -> dict[str, float]:
        tokens = {"prompt": self.prompt_tokens, "new_tokens": self.new_tokens}
        return compare(self.model, self.eager, self.compiled, **tokens)

    def sequence(self) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return sequence(self.model, self.compiled, self.prompt, self.new_tokens)

    def one_step(self, with_steps: Steps) -> Callable[[], None]:
        """Return a step in the middle of the sequence; repeating it writes the same to the KV cache."""
        token = self.prompt[:1].clone()
        position = torch.tensor([self.prompt_tokens + self.new_tokens // 2], device=self.device.type)

        def step() -> None:
            torch.compiler.cudagraph_mark_step_begin()
            with torch.no_grad():
                with_steps.decode(self.model, token, position)

        return step


def _build_model(spec: TaskSpec, tokens: int, device: Device) -> Transformer:
    """Return the model. Raise TaskFailure (oom), before anything is allocated, if its weights cannot fit."""
    shape = SHAPES[spec.case]
    if spec.setting("layers") is not None:
        shape = dataclasses.replace(shape, layers=spec.number("layers"))
    int8 = spec.dtype == "int8"
    needed, free = weight_bytes(shape, int8=int8), device.free_bytes()
    if needed > _MEMORY_SHARE * free:
        reason = f"the weights need {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        raise TaskFailure("oom", "out_of_memory", reason)
    context = -(-tokens // _ROUND) * _ROUND
    model = Transformer(shape, int8=int8, context=context, device=device.type).eval()
    how = str(spec.setting("quantization"))
    if how != "none":
        quantise(model, how)
    return model


def _build_and_compile(spec: TaskSpec, report: Report, label: str) -> tuple[_Generator, FirstCalls]:
    """Build and compile the model; compile time starts after an eager step and a warm toolchain."""
    device = prepare(spec.device)
    compile_time.start_workers()
    report.event("eager", 0, 0, f"{label}: weights and a step")
    generator = _Generator(spec, device)
    generator.one_step(generator.eager)()
    report.event("compile", 0, 0, label)
    compile_time.warm_toolchain(device)
    tuning.watch()
    found = compile_time.first_calls(generator.sequence, device, before_call=lambda: None)
    if counters.unique_graphs() == 0:
        raise TaskFailure("failed", "not_compiled", "inductor compiled nothing: this would be eager code")
    return generator, found


def _measure(spec: TaskSpec, report: Report, cold: Cold | None) -> TaskFailure | None:
    """Record part after part; return the first failure of one."""
    label = "warm" if cold else "cold" if spec.compilation else "host's caches"
    generator, first_calls = _build_and_compile(spec, report, label)
    cold_calls, graphs = cold or (None, graph_facts().to_json())
    device = generator.device
    states = [device_state(device)]
    recorder = Recorder(spec, report, device)
    checked: dict[str, float] = {}
    if not spec.compilation:
        report.event("accuracy")
        checked = generator.check()
    parts: list[tuple[tuple[str, ...], Callable[[], list[Result]]]] = [
        (COMPILE_METRICS, lambda: _compile_results(spec, first_calls, cold_calls)),
        (SEQUENCE_METRICS, lambda: _sequence_results(spec, report, generator)),
        (STEP_METRICS, lambda: _step_results(spec, report, generator)),
        (DEVICE_METRICS, lambda: _device_results(report, generator)),
        ((), lambda: _counts(checked, generator, graphs, report)),
    ]
    incomplete = None
    for metrics, part in parts:
        try:
            results = part()
        except Exception as error:  # noqa: BLE001 - the other parts are results all the same
            traceback.print_exc()
            failure = failure_of(error)
            incomplete = incomplete or failure
            recorder.missing(metrics, failure, knobs=spec.identity())
            continue
        states.append(device_state(device))
        skips = counters.cudagraph_skips()
        skipped = f"{skips} CUDA graphs were asked for and left out" if skips else ""
        warnings = joined_warnings((warning(states), MeasurementWarning(skipped)))
        if not spec.identity():
            results = [with_gpt_fast_target(spec, result) for result in results]
        recorder.add(*results, knobs=spec.identity(), warning=warnings)
    keep_gpu_states(report, states)
    return incomplete


def _compile_results(spec: TaskSpec, measured: FirstCalls, cold: FirstCalls | None) -> list[Result]:
    """Return gpt-fast's compile time, the first sequence, and ours: its time beyond a later one. `measured`
    are the first calls of this process: warm ones where another has compiled `cold`."""
    clock = "host clock around the first sequence"
    if cold is None and not spec.compilation:
        facts = {"caches": "the host's own: cold where it never compiled this"}
        return [Result("compilation_time(s)", [measured.compiling_ms[0] / 1e3], clock, facts=facts)]
    first = cold or measured
    found = [
        Result("compilation_time(s)", [first.compiling_ms[0] / 1e3], clock, facts={"caches": "fresh"}),
        Result("cold_compile_s", [first.compile_s], "host clock", facts={"phases_s": first.phases_s}),
    ]
    if cold is not None:
        of_warm = {"phases_s": measured.phases_s, "settled": measured.settled}
        found.append(Result("warm_compile_s", [measured.compile_s], "host clock", facts=of_warm))
    return found


def _sequence_results(spec: TaskSpec, report: Report, generator: _Generator) -> list[Result]:
    """Time whole sequences including prefill, as gpt-fast does, with the memory that they need."""
    memory.reset(generator.device)
    samples = spec.number("samples")
    per_s = []
    for sample in range(samples):
        report.event("measure", sample, samples, "sequences")
        time_ms = call_time.one_call_ms(generator.sequence, generator.device)
        per_s.append(generator.new_tokens / (time_ms / 1e3))
    active = generator.model.active_weight_bytes()
    bandwidth = [active * value / 1e9 for value in per_s]
    return [
        *memory.peaks(generator.device, "compiled"),
        Result("token_per_sec", per_s, _CLOCK),
        Result("memory_bandwidth(GB/s)", bandwidth, _CLOCK, facts={"active_weight_bytes": active}),
    ]


def _step_results(spec: TaskSpec, report: Report, generator: _Generator) -> list[Result]:
    report.event("measure", 0, 0, "steps, eager and compiled in turn")
    times = interleaved_timings(
        generator.one_step(generator.eager),
        generator.one_step(generator.compiled),
        generator.device,
        TimingPlan(spec.number("repeat"), spec.number("budget_s")),
    )
    generator.called = latency_results(times, "host clock around one step")
    return generator.called


def _device_results(report: Report, generator: _Generator) -> list[Result]:
    """Return the GPU's active time of a step, and the bandwidth at which it reads the active weights."""
    if generator.device.type != "cuda":
        return []
    report.event("measure", 0, 0, "GPU busy time of a step")
    step = generator.one_step(generator.compiled)
    found, _trace = gpu_active_time.at_full_clock(step, generator.device, before_call=lambda: None)
    generator.profiled = found.steps
    model, clock = generator.model, gpu_active_time.CLOCK
    active, kv = model.active_weight_bytes(), model.kv_bytes()
    bandwidth = ceilings.gbps(active, found.steps_ms)
    facts = {
        "moved_bytes": active,
        "kv_bytes": kv,
        "with_kv_gbps": (active + kv) / active * median(bandwidth),
        "launches": found.launches,
    }
    return [
        Result("gpu_busy_ms", found.steps_ms, clock),
        Result("device_bandwidth_gbps", bandwidth, clock, facts=facts),
        ceilings.share_of_ceiling(ceilings.READ, bandwidth, generator.device, clock),
    ]


def _counts(checked: dict[str, float], generator: _Generator, graphs: Json, report: Report) -> list[Result]:
    """Return the counts, and the kernels of prefill and decode; a decode step was profiled. `graphs` are the
    facts of the process that compiled with empty caches."""
    contents = produced(counters.modules(), generator.profiled)
    keep_code(report, contents.code)
    count = contents.count(counters.extern_calls(), generator.called)
    own = count.facts[COMPILED]
    own |= {**graphs, "blind": {**graphs.get("blind", {}), **own.get("blind", {})}}
    return [
        count,
        Result("recompiles", [float(counters.unique_graphs() - _GRAPHS)], facts=checked),
        Result("cudagraph_skips", [float(counters.cudagraph_skips())]),
    ]


def compile_all(spec: TaskSpec) -> str:
    """Compile and check once more what failed; return ok, or raise."""
    _Generator(spec, prepare(spec.device)).check()
    return "ok"
