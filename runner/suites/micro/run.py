"""gpt-fast's micro-benchmarks: each size is measured separately, the mean over sizes is derived.

For each size: compile, compare with eager, then run the clocks: call time, graph replay (on CUDA) and
gpt-fast's own.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch._inductor.runtime.benchmarking import benchmarker

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure import accuracy, ceilings
from runner.measure.ceilings import gbps, share_of_ceiling, tflops
from runner.measure.compiler import counters
from runner.measure.compiler.bisection import explained
from runner.measure.compiler.compiled import by_inductor, compile_inductor
from runner.measure.compiler.inductor_options import candidate_options
from runner.measure.kernels.produced import keep_code, produced, profiled_steps
from runner.measure.recorder import Recorder, Result, with_gpt_fast_target
from runner.measure.state.device import SEED, Device, device_state, keep_gpu_states, prepare, warning
from runner.measure.timing import call_time, graph_replay
from runner.measure.timing.call_time import TimingPlan, interleaved_timings, latency_results, pipelined_ms
from runner.measure.timing.compile_time import forget_compiles
from runner.measure.timing.graph_replay import ReplayPlan
from runner.schema.metrics import mean_over
from runner.schema.options import EXPLAIN
from runner.schema.records import Json, MeasurementWarning, joined_warnings, worst_quality
from runner.schema.statistics import geometric_mean
from runner.schema.suite import TaskSpec
from runner.suites.micro import has_mean, size_metrics, sizes_of
from runner.suites.micro.kernels import KERNELS, Kernel

_LEAST_PAIRS = 30
_BUDGET_S = 3.0  # of call time for each size
_SAMPLES = 20  # of the clocks without pairs
_A100_40GB_TFLOPS = 312  # gpt-fast divides by it on every device
_GPT_FAST_CLOCK = "inductor benchmarker, as gpt-fast's benchmark.py"
_GPT_FAST_WARM_CALLS = 5
_EXPLAIN_SHARE = 0.5  # of the task's time, at most
_GOES_ON = ("wrong", "oom")  # the other sizes can still be measured after these
_MEANS = (
    *("device_bandwidth_gbps", "share_of_ceiling", "call_bandwidth_gbps"),
    *("flops_utilization_of_peak", "call_flops_utilization_of_peak"),
    *("memory_bandwidth(GB/s)", "flops_utilization"),
)
_GEOMETRIC_MEANS = ("speedup", "device_speedup")


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Measure every size. Return the first failure; sizes after it are measured if they still can be."""
    device = prepare(spec.device)
    states = [device_state(device)]
    recorder = Recorder(spec, report, device)
    sizes = sizes_of(spec)
    complete: list[list[Result]] = []
    disturbed: list[MeasurementWarning] = []
    failure: TaskFailure | None = None
    explain_s = min(spec.number(EXPLAIN), _EXPLAIN_SHARE * spec.timeout_s)
    for done, size in enumerate(sizes):
        begin = partial(report.event, done=done, total=len(sizes), label=f"D={size}")
        try:
            results = _measure(spec, size, device, report, begin)
        except Exception as error:  # a size that fails is a result too
            failed = failure_of(error)
            limit_s = 0.0 if failed.status == "crashed" else explain_s  # nothing runs here any more
            problem, facts = explained(failed, partial(_again, spec, size, device), limit_s)
            recorder.missing(size_metrics(spec.case, device.type), problem, facts, knobs={"D": size})
            failure = failure or problem
            if problem.status not in _GOES_ON:
                raise
        else:
            states.append(device_state(device))
            disturbed.append(warning(states))
            recorder.add(*results, knobs={"D": size}, warning=disturbed[-1])
            complete.append(results)
        device.release()
    if has_mean(sizes, spec.device) and failure is None:
        recorder.add(*_means(spec, complete), knobs=mean_over(sizes), warning=joined_warnings(disturbed))
    report.event("finished", len(sizes), len(sizes))
    keep_gpu_states(report, states)
    return failure


def _measure(
    spec: TaskSpec, size: int, device: Device, report: Report, begin: Callable[[str], None]
) -> list[Result]:
    """Return all metrics of one size. Raise TaskFailure (wrong) before any clock runs.

    A further compilation is not checked again, and leaves out gpt-fast's own clock.
    """
    torch.manual_seed(SEED)
    kernel = KERNELS[spec.case](size, getattr(torch, spec.dtype), device.type)
    begin("compile")
    with torch.no_grad():
        compiled = compile_inductor(kernel.function, kernel.operands, device, kernel.options)
        checked: dict[str, Json] = {}
        if not spec.compilation:
            begin("accuracy")
            result, expected = (call(*kernel.operands) for call in (compiled, kernel.eager))
            checked |= accuracy.check(result, expected, kernel.reference())
            device.release()
        begin("measure")
        at_least = cast("int", spec.knobs.get("repeat", _LEAST_PAIRS))
        results = _call_results(kernel, compiled, device, at_least)
        found = produced(counters.modules(), profiled_steps(lambda: compiled(*kernel.operands), device))
        if device.type == "cuda":
            results += _device_results(kernel, compiled, device)
        if kernel.flops:
            results += _utilization(kernel, results, device)
    keep_code(report, found.code, f"-{size}")
    checked["kernels"] = dict(found.generated or ())
    results += [
        found.count(counters.extern_calls(), results, **checked),
        Result("recompiles", [float(counters.unique_graphs() - 1)]),
    ]
    if kernel.of_gpt_fast and not spec.compilation:  # which compiles anew, by other options
        begin("gpt-fast's clock")
        results += _gpt_fast_results(kernel)
    return results


def _again(spec: TaskSpec, size: int, device: Device, _left_s: float) -> str:
    """Compile and check once more what failed; return ok, or raise."""
    torch.manual_seed(SEED)
    kernel = KERNELS[spec.case](size, getattr(torch, spec.dtype), device.type)
    forget_compiles()
    with torch.no_grad():
        found = by_inductor(kernel.function, kernel.options)(*kernel.operands)
        accuracy.check(found, kernel.eager(*kernel.operands), kernel.reference())
    return "ok"


def compile_all(spec: TaskSpec) -> None:
    """Compile every size, for who watches torch.compile."""
    device = prepare(spec.device)
    for size in sizes_of(spec):
        _again(spec, size, device, 0.0)


def _call_results(
    kernel: Kernel, compiled: Callable[..., torch.Tensor], device: Device, at_least: int
) -> list[Result]:
    def compiled_call() -> torch.Tensor:
        return compiled(*kernel.operands)

    times = interleaved_timings(
        lambda: kernel.eager(*kernel.operands), compiled_call, device, TimingPlan(at_least, _BUDGET_S)
    )
    pipelined = pipelined_ms(compiled_call, device, windows=_SAMPLES)
    moved = {"moved_bytes": kernel.moved_bytes}
    results = [
        *latency_results(times, call_time.CLOCK, moved_bytes=kernel.moved_bytes),
        Result("back_to_back_latency_ms", pipelined, call_time.PIPELINED_CLOCK, facts=moved),
    ]
    if kernel.ceiling != ceilings.MATMUL:
        bandwidth = gbps(kernel.moved_bytes, times.compiled)
        results.append(Result("call_bandwidth_gbps", bandwidth, call_time.CLOCK, facts=moved))
    return results


def _device_results(kernel: Kernel, compiled: Callable[..., torch.Tensor], device: Device) -> list[Result]:
    """Return device times, and the share that they reach of the host's memory or matrix products."""
    times = graph_replay.replay(
        kernel.eager, compiled, kernel.operands, device, ReplayPlan(kernel.moved_bytes)
    )
    clock, n = graph_replay.CLOCK, len(times.compiled)
    moved = {"moved_bytes": kernel.moved_bytes}
    bandwidth = []
    if kernel.ceiling == ceilings.MATMUL:
        reached = tflops(kernel.flops, times.compiled)
    else:
        reached = gbps(kernel.moved_bytes, times.compiled)
        bandwidth = [Result("device_bandwidth_gbps", reached, clock, facts=moved)]
    return [
        Result("device_latency_ms", times.compiled, clock, facts={**times.facts, **moved}),
        *bandwidth,
        share_of_ceiling(kernel.ceiling, reached, device, clock),
        Result("device_speedup", [times.speedup], clock, n=n),
    ]


def _utilization(kernel: Kernel, results: list[Result], device: Device) -> list[Result]:
    """Return the share of peak FLOP/s by device time, then by call time; on a CPU by call time alone."""
    measured = "bfloat16 product measured on this host"
    of_sheet = ceilings.peak_tflops(device.name, "bfloat16", "")
    peak_tflops, peak = of_sheet or (ceilings.ceiling(ceilings.MATMUL, device), measured)
    facts = {"peak_tflops": peak_tflops, "peak": peak, "flops": kernel.flops}
    by_metric = {result.metric: result for result in results}
    clocks = ("device_latency_ms", "compiled_latency_ms")
    latencies = [by_metric[name] for name in clocks if name in by_metric]
    names = ("flops_utilization_of_peak", "call_flops_utilization_of_peak")
    results = []
    for name, latency in zip(names, latencies, strict=False):
        shares = [reached / peak_tflops for reached in tflops(kernel.flops, latency.values)]
        results.append(Result(name, shares, latency.clock, facts=facts))
    return results


def _gpt_fast_results(kernel: Kernel) -> list[Result]:
    """Return the metrics that have gpt-fast's names, by its clock and formulas, right or wrong.

    Its benchmark.py compiles with grad mode on and uses inductor's benchmarker: on CUDA the minimum of up to
    100 single calls between events, each after the L2 cache was overwritten; on a CPU the median of 0.1 s of
    calls. One sample here is one such answer: what one run of its script would print.
    """
    options = {**kernel.options, **candidate_options()}
    with torch.enable_grad():
        compiled = torch.compile(kernel.function, dynamic=False, options=options)
        for _ in range(_GPT_FAST_WARM_CALLS):
            compiled(*kernel.operands)
        times_ms = [float(benchmarker.benchmark(compiled, kernel.operands, {})) for _ in range(_SAMPLES)]
    if kernel.flops:
        # time multiplied by flops, as benchmark.py has it
        values = [time_ms * 1e3 * kernel.flops / 1e9 / _A100_40GB_TFLOPS for time_ms in times_ms]
        return [Result("flops_utilization", values, _GPT_FAST_CLOCK)]
    values, moved = gbps(kernel.moved_bytes, times_ms), {"moved_bytes": kernel.moved_bytes}
    return [Result("memory_bandwidth(GB/s)", values, _GPT_FAST_CLOCK, facts=moved)]


def _means(spec: TaskSpec, complete: list[list[Result]]) -> list[Result]:
    """Return the means over the sizes, at each quantile of their samples, so that the median of a mean is
    the mean of the sizes' medians, however noisy one of them is. Ratios have the geometric mean. A mean has
    the worst quality of its parts."""
    by_size = [{result.metric: result for result in results} for results in complete]
    means = []
    for metric in (*_MEANS, *_GEOMETRIC_MEANS):
        parts = [results[metric] for results in by_size if metric in results]
        if not parts:
            continue
        mean = geometric_mean if metric in _GEOMETRIC_MEANS else statistics.fmean
        quality = worst_quality(part.facts.get("quality") for part in parts)
        result = Result(
            metric,
            [mean(samples) for samples in zip(*_quantiles([part.values for part in parts]), strict=True)],
            parts[0].clock,
            n=min(part.n or len(part.values) for part in parts),
            facts={"quality": quality} if quality else {},
        )
        # gpt-fast's target was set for a GPU and does not apply to a CPU
        means.append(with_gpt_fast_target(spec, result) if spec.device == "cuda" else result)
    return means


def _quantiles(samples: Sequence[list[float]]) -> list[list[float]]:
    """Sort each size's samples and bring them to equal length: an odd one, whose middle is the median."""
    counts = {len(values) for values in samples}
    if len(counts) == 1:
        return [sorted(values) for values in samples]
    steps = max(min(counts) | 1, 3)
    return [
        [min(values), *statistics.quantiles(values, n=steps - 1, method="inclusive"), max(values)]
        for values in samples
    ]
