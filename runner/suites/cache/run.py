"""Run cachebench: pairs of processes with one folder of caches, empty for the first, full for the second."""

import dataclasses
import importlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure import turns
from runner.measure.compiler import counters
from runner.measure.forked import run_stage
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import SEED, host_state, prepare, warning
from runner.measure.timing import compile_time
from runner.measure.timing.call_time import one_call_ms
from runner.schema.records import Json, MeasurementWarning, joined_warnings
from runner.schema.statistics import median
from runner.schema.suite import TaskSpec
from runner.suites.cache import METRICS, ORIGINS
from runner.suites.torchdynamo.model import Step, floats_in, load

_CLOCK = "host clock, first compiled call to the first that compiles nothing, less steady calls"
_UPSTREAM_CLOCK = "host clock around five compiled calls, less five eager ones, as the harness's warm-up"
_SAME = 1e-2  # relative difference of a result from the cache that half precision explains
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

    first: compile_time.FirstCalls
    counted: counters.Counts
    warm_up_difference_s: float  # cachebench's compile time
    cache_bytes: int
    cache_entries: int
    result: float


Pair = tuple[Compiled, Compiled]  # cold, warm


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Compile `repeat` pairs, each with caches of its own. The first failure ends it and leaves no number."""
    ends = turns.clock_s() + spec.timeout_s
    total = spec.number("repeat")
    pairs: list[Pair] = []
    disturbed: list[MeasurementWarning] = []
    failure: TaskFailure | None = None
    for number in range(total):
        folder = report.folder / f"caches_{number}"
        before = host_state(spec.device)
        compiled = []
        try:
            for done, name in enumerate(("cold", "warm"), start=2 * number):
                report.event("compile", done, 2 * total, f"{name}, pair {number + 1}")
                answer = run_stage(
                    f"{name}_{number}",
                    partial(compile_once, spec, folder),
                    folder=report.folder,
                    variables=compile_time.cache_variables(folder),
                    timeout_s=max(1.0, ends - turns.clock_s()),
                )
                compiled.append(answer)
            cold, warm = compiled
            _compare(cold.result, warm.result)
        except TaskFailure as error:
            failure = error
            break
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        pairs.append((cold, warm))
        disturbed.append(warning([before, host_state(spec.device)]))
    # only now: a process that has asked for the device cannot be forked
    recorder = Recorder(spec, report, prepare(spec.device))
    knobs = {**spec.identity(), "origin": ORIGINS[spec.case]}
    if failure:
        recorder.missing(METRICS, failure, knobs=knobs)
        return failure
    recorder.add(*results_of(pairs), knobs=knobs, warning=joined_warnings(disturbed))
    report.event("finished", 2 * total, 2 * total)
    return None


def _compare(cold: float, warm: float) -> None:
    """Raise TaskFailure (wrong) where code from the cache computes something else."""
    if not abs(warm - cold) <= _SAME * abs(cold):
        reason = f"the result is {cold:.6g} (norm) as compiled, {warm:.6g} from the cache"
        raise TaskFailure("wrong", "fail_accuracy", reason)


def results_of(pairs: list[Pair]) -> list[Result]:
    """Return our metrics with one sample for each pair, then cachebench's three, the last a single number."""
    colds, warms = zip(*pairs, strict=True)
    cold_s, warm_s = ([part.first.compile_s for part in side] for side in (colds, warms))
    ratios = [warm / cold for cold, warm in zip(cold_s, warm_s, strict=True)]
    upstream_cold_s, upstream_warm_s = ([one.warm_up_difference_s for one in side] for side in (colds, warms))
    saved = (1 - sum(upstream_warm_s) / sum(upstream_cold_s)) * 100
    warm_caches = {"caches": [warm.counted.caches for warm in warms]}
    return [
        Result("cold_compile_s", cold_s, _CLOCK, facts=_phases(colds)),
        Result("warm_compile_s", warm_s, _CLOCK, facts=_phases(warms)),
        Result("warm_to_cold_ratio", ratios, _CLOCK),
        Result("compile_time_reduction", [1 - ratio for ratio in ratios], _CLOCK),
        Result("cache_hits", [float(warm.counted.cache_hits) for warm in warms], facts=warm_caches),
        Result("cache_misses", [float(warm.counted.cache_misses) for warm in warms], facts=warm_caches),
        Result("cache_bytes", [float(cold.cache_bytes) for cold in colds]),
        Result("cache_entries", [float(cold.cache_entries) for cold in colds]),
        Result("Cold compile time (s)", upstream_cold_s, _UPSTREAM_CLOCK),
        Result("Warm compile time (s)", upstream_warm_s, _UPSTREAM_CLOCK),
        Result("Speedup (%)", [saved], _UPSTREAM_CLOCK, n=len(pairs)),
    ]


def _phases(compiled: Sequence[Compiled]) -> dict[str, Json]:
    """Return dynamo's own account: phase → median seconds over the pairs."""
    found = [part.first.phases_s for part in compiled]
    names = {name for phases in found for name in phases}
    return {"phases_s": {name: median([phases.get(name, 0.0) for phases in found]) for name in sorted(names)}}


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
        for tensor in model.batch_tensors():
            torch._dynamo.mark_dynamic(tensor, 0)

    def compiled() -> Any:
        with torch.set_grad_enabled(spec.mode == "training"):
            return function(model.inputs)

    first = compile_time.first_calls(compiled, device, before_call=step.begin)
    counted = counters.counts()
    if not counted.harness["unique_graphs"]:
        raise TaskFailure("failed", "not_compiled", "inductor compiled nothing: this would be eager code")
    calls_ms = [*first.compiling_ms, *first.steady_ms, *[first.steady_ms[-1]] * _WARM_UP_CALLS]
    first_ms = sum(calls_ms[:_WARM_UP_CALLS])
    size, entries = (now - before for now, before in zip(_contents(folder), already, strict=True))
    return Compiled(
        first=first,
        counted=counted,
        # the harness starts the toolchain on the clock
        warm_up_difference_s=(toolchain_ms + first_ms - sum(eager_ms)) / 1e3,
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
    return float(sum(torch.linalg.vector_norm(one.detach().double()) for one in floats_in(compiled())))


def _contents(folder: Path) -> tuple[int, int]:
    """Return the bytes and the number of files in a folder."""
    sizes = [os.lstat(Path(path) / name).st_size for path, _, names in os.walk(folder) for name in names]
    return sum(sizes), len(sizes)
