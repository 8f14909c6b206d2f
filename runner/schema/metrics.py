"""The registry of metrics: every name of the five systems and ours, with unit and direction.

A name that is not here is stored without a direction and never coloured.
"""

import re
from collections.abc import Container
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from runner.schema.units import canonical

Direction = Literal["up", "down", "none"]  # up: a larger value is better
Kind = Literal["timing", "deterministic", "status"]
# headline: may open a regression; detail: judged and shown; diagnostic: shown only
Role = Literal["headline", "detail", "diagnostic"]
# times of what no compiler made: they move with the host
EAGER_TIMES = ("eager_device_latency_ms", "eager_gpu_busy_ms", "eager_latency_ms", "time_baseline")
STEP_METRICS = ("eager_latency_ms", "compiled_latency_ms", "speedup")  # by call time


@dataclass(frozen=True)
class MetricInfo:
    """`floor` is the smallest relative change that may count; any change of a deterministic metric does.

    `signed` metrics may be negative: differences (the harness subtracts the steady calls from its compile
    time, which may leave less than zero on a noisy CPU), and numbers that may be differences.
    """

    name: str
    title: str
    unit: str
    direction: Direction
    kind: Kind = "timing"
    precision: int = 2  # digits after the point on a page
    floor: float = 0.05
    signed: bool = False
    role: Role = "detail"

    def to_row(self) -> dict[str, Any]:
        """Return the row of the HUD's table of metrics."""
        row = asdict(self)
        del row["signed"], row["role"]  # of use to code alone
        return row


def _timing(  # noqa: PLR0917 - a table reads best in rows
    name: str, title: str, unit: str, direction: Direction, precision: int, floor: float
) -> MetricInfo:
    return MetricInfo(name, title, unit, direction, "timing", precision, floor)


def _signed(*row: Any) -> MetricInfo:
    """Return a timing that may be below zero."""
    return replace(_timing(*row), signed=True)


def _count(name: str, title: str, direction: Direction = "down") -> MetricInfo:
    return MetricInfo(name, title, "count", direction, "deterministic", 0, 0.0)


# The floors are those of PyTorch's HUD: speedup and bandwidth 5 %, compile time and peak memory 15 %.
_UPSTREAM = (
    _timing("speedup", "Speedup", "x", "up", 3, 0.05),
    _timing("abs_latency", "Latency, compiled", "ms", "down", 3, 0.05),
    _signed("compilation_latency", "Compile time (PyTorch harness)", "s", "down", 2, 0.15),
    _signed("accuracy_compilation_latency", "Compile time, accuracy run", "s", "down", 2, 0.15),
    _timing("compression_ratio", "Memory compression", "x", "up", 3, 0.05),
    _timing("eager_peak_mem", "Peak memory, eager", "GB", "down", 3, 0.15),
    _timing("dynamo_peak_mem", "Peak memory, compiled", "GB", "down", 3, 0.15),
    MetricInfo("accuracy", "Accuracy", "", "none", "status", 0, 0.0),
    _timing("memory_bandwidth(GB/s)", "Memory bandwidth (gpt-fast)", "GB/s", "up", 2, 0.05),
    _timing("flops_utilization", "FLOPs utilization (gpt-fast)", "ratio", "up", 2, 0.05),
    _timing("token_per_sec", "Tokens per second", "token/s", "up", 1, 0.05),
    _timing("compilation_time(s)", "Compile time", "s", "down", 2, 0.15),
    _signed("Cold compile time (s)", "Cold compile time (cachebench)", "s", "down", 2, 0.15),
    _signed("Warm compile time (s)", "Warm compile time (cachebench)", "s", "down", 2, 0.15),
    _signed("Speedup (%)", "Time saved by the cache", "%", "up", 1, 0.05),
    _timing("20th", "Speedup over shapes, 20th percentile", "x", "up", 3, 0.05),
    _timing("50th", "Speedup over shapes, median", "x", "up", 3, 0.05),
    _timing("80th", "Speedup over shapes, 80th percentile", "x", "up", 3, 0.05),
    _timing("abs", "Mean latency over shapes", "ms", "down", 4, 0.05),
    _timing("elapsed", "Duration of the measurement", "s", "down", 2, 0.15),
    _timing("speedup_vs_baseline", "Speedup over the earlier file's", "x", "up", 3, 0.05),
    _timing("baseline", "Speedup of the earlier file", "x", "none", 3, 0.05),
    _timing("cache_lookup_latency", "Dynamo cache lookup time", "µs", "down", 1, 0.15),
    _timing("time_baseline", "Latency, eager", "s", "down", 6, 0.05),
    _timing("time_xla", "Latency, PyTorch/XLA", "s", "down", 6, 0.05),
    _signed("tolerance_max", "Largest relative difference", "", "down", 6, 0.15),
    _signed("tolerance_mean", "Mean relative difference", "", "down", 6, 0.15),
    _timing("tolerance_std", "Spread of the relative differences", "", "down", 6, 0.15),
    _timing("pct_ops", "Share of operations captured", "ratio", "up", 3, 0.05),
    _timing("pct_time", "Share of time captured", "ratio", "up", 3, 0.05),
)
_XLA = (
    # steady: without the first run, which compiles (`value_rule`)
    _timing("total_time", "Time, all iterations, steady", "s", "down", 4, 0.05),
    _timing("per_iter_time", "Time per iteration, steady", "s", "down", 5, 0.05),
    _timing("trace_total_time", "Tracing time, all iterations, steady", "s", "down", 4, 0.15),
    _timing("trace_per_iter_time", "Tracing time per iteration, steady", "s", "down", 5, 0.15),
    _timing("xla_CompileTime_time_s", "XLA compile time, all runs", "s", "down", 3, 0.15),
    _timing("xla_ExecuteTime_time_s", "XLA execution time, steady", "s", "down", 4, 0.05),
    _timing("total_cpu_time_s", "CPU time, all iterations, steady", "s", "down", 4, 0.05),
    _timing("total_cuda_time_s", "CUDA time, all iterations, steady", "s", "down", 4, 0.05),
    _timing("per_iter_cpu_time_s", "CPU time per iteration, steady", "s", "down", 5, 0.05),
    _timing("per_iter_cuda_time_s", "CUDA time per iteration, steady", "s", "down", 5, 0.05),
    # a profiler's total less its children's, at times below zero
    _signed("self_cpu_time_s", "Self CPU time of an operation", "s", "down", 6, 0.05),
    _signed("self_cuda_time_s", "Self CUDA time of an operation", "s", "down", 6, 0.05),
    _count("num_of_calls", "Calls of an operation", "none"),
    _count("xla_CompileTime_number", "Graphs compiled by XLA, all runs"),
    _count("xla_ExecuteTime_number", "Executions of compiled graphs, steady", "none"),
    MetricInfo("verification_code", "Verification", "", "none", "status", 0, 0.0),
)
_TORCHBENCH = (
    _timing("latencies", "Latency, median of 15", "ms", "down", 3, 0.05),
    _timing("cpu_peak_mem", "Peak memory, CPU", "GB", "down", 3, 0.15),
    _timing("gpu_peak_mem", "Peak memory, GPU", "GB", "down", 3, 0.15),
    MetricInfo("memleak", "Memory leak", "", "none", "status", 0, 0.0),
)
# compile_time_instruction_count is the least of several: its noise is under 1.5 %, as its own gate assumes.
_INSTRUCTIONS = (
    _timing("compile_time_instruction_count", "CPU instructions to compile", "count", "down", 0, 0.015),
    _timing("instruction_count", "CPU instructions", "count", "down", 0, 0.015),
)
_KERNELS = (
    _timing("latency_us", "Latency", "µs", "down", 3, 0.05),
    _timing("gap_vs_sol", "Latency / speed of light", "x", "down", 3, 0.05),
    _timing("projected_model_latency_us", "Latency, sum over a model's kernels", "µs", "down", 1, 0.05),
    _timing("model_coverage_ratio", "Share of a model's kernels measured", "ratio", "up", 3, 0.05),
)
# PyTorch HUD's own names, with its units and directions: test-infra, `torchci/lib/benchmark/llms/common.ts`.
_HUD = (
    _timing("latency", "Latency", "s", "down", 4, 0.05),
    _timing("avg_inference_latency(ms)", "Inference latency, mean", "ms", "down", 3, 0.05),
    _timing("trimmean_inference_latency(ms)", "Inference latency, trimmed mean", "ms", "down", 3, 0.05),
    _timing("model_load_time(ms)", "Model load time", "ms", "down", 2, 0.15),
    _timing("generate_time(ms)", "Generation time", "ms", "down", 2, 0.05),
    _timing("peak_inference_mem_usage(mb)", "Peak memory, inference", "MB", "down", 1, 0.15),
    _timing("peak_load_mem_usuage(mb)", "Peak memory, model load", "MB", "down", 1, 0.15),  # its spelling
    _timing("requests_per_second", "Requests per second", "request/s", "up", 2, 0.05),
    _timing("request_throughput", "Requests per second", "request/s", "up", 2, 0.05),
    _timing("tokens_per_second", "Tokens per second", "token/s", "up", 1, 0.05),
    _timing("output_throughput", "Output tokens per second", "token/s", "up", 1, 0.05),
    _timing("total_token_throughput", "Tokens per second, in and out", "token/s", "up", 1, 0.05),
    _timing("Speedup", "Speedup", "x", "up", 3, 0.05),
    _timing("triton_speedup", "Speedup, Triton", "x", "up", 3, 0.05),
    _timing("torch_compile_speedup", "Speedup, torch.compile", "x", "up", 3, 0.05),
    _timing("helion_speedup", "Speedup, Helion", "x", "up", 3, 0.05),
    _timing("eager_speedup", "Speedup, eager", "x", "up", 3, 0.05),
    _timing("compile_vs_eager_speedup", "Speedup, compiled over eager", "x", "up", 3, 0.05),
    _timing("autoquant_vs_compile_speedup", "Speedup, autoquant over compiled", "x", "up", 3, 0.05),
    _timing("cold_compile_time(s)", "Cold compile time", "s", "down", 2, 0.15),
    _timing("warm_compile_time(s)", "Warm compile time", "s", "down", 2, 0.15),
    _signed("speedup_pct", "Time saved by the cache", "%", "up", 1, 0.05),
    _timing("passrate", "Pass rate", "ratio", "up", 3, 0.01),
    _timing("geomean_speedup", "Speedup, geometric mean", "x", "up", 3, 0.05),
    _timing("execution_time", "Latency, compiled, mean over models", "ms", "down", 3, 0.05),
    _timing("mfu", "Model FLOPs utilization", "ratio", "up", 4, 0.05),
    _timing("memory_bandwidth", "Memory bandwidth", "GB/s", "up", 1, 0.05),
    MetricInfo("load_status", "Model load status", "", "none", "status", 0, 0.0),
)
_COUNT_TITLES = {
    "calls_captured": "Operations captured",
    "unique_graphs": "Graphs",
    "fallbacks_to_eager": "Fallbacks to eager",
    "graph_breaks": "Graph breaks",
    "unique_graph_breaks": "Distinct graph breaks",
    "autograd_captures": "Autograd captures",
    "autograd_compiles": "Autograd compiles",
    "cudagraph_skips": "CUDA graph skips",
}
HARNESS_COUNTS = tuple(_COUNT_TITLES)  # in the order of its columns
_NO_DIRECTION = ("calls_captured", "autograd_captures", "autograd_compiles")
_COUNTS = tuple(
    _count(prefix + name, title + suffix, "none" if name in _NO_DIRECTION else "down")
    for name, title in _COUNT_TITLES.items()
    for prefix, suffix in (("", ""), ("accuracy_", ", accuracy run"))
)
_LISTED = (
    _count("graph_breaks_listed", "Listed graph breaks"),
    _count("unique_graph_breaks_listed", "Listed distinct graph breaks"),
    _count("graph_breaks_listed_deduped", "Listed graph breaks, deduplicated"),
    _count("total_aot_graphs", "Graphs passed to AOTAutograd", "none"),
    _count("ok_aot_graphs", "Graphs accepted by AOTAutograd", "none"),
    _count("graphs", "Graphs captured", "none"),
    _count("graph_calls", "Calls of captured graphs", "none"),
    _count("captured_ops", "Operations captured in graphs", "none"),
    _count("total_ops", "Operations", "none"),
)
_OURS = (
    _timing("device_bandwidth_gbps", "Memory bandwidth, device time", "GB/s", "up", 1, 0.03),
    _timing("call_bandwidth_gbps", "Memory bandwidth, call time", "GB/s", "up", 1, 0.05),
    _timing("share_of_ceiling", "Share of the measured ceiling", "ratio", "up", 3, 0.03),
    _timing("device_latency_ms", "Latency, device time (graph replay)", "ms", "down", 4, 0.03),
    _timing("eager_device_latency_ms", "Latency, eager, device time (graph replay)", "ms", "down", 4, 0.03),
    _timing("compiled_latency_ms", "Latency, compiled, call time", "ms", "down", 4, 0.05),
    _timing("eager_latency_ms", "Latency, eager, call time", "ms", "down", 4, 0.05),
    _timing("back_to_back_latency_ms", "Latency, compiled, back to back", "ms", "down", 4, 0.05),
    _timing("gpu_busy_ms", "GPU busy time", "ms", "down", 4, 0.05),
    _timing("device_speedup", "Speedup, device time", "x", "up", 3, 0.03),
    _timing("flops_utilization_of_peak", "Share of peak FLOP/s", "ratio", "up", 4, 0.05),
    _timing("call_flops_utilization_of_peak", "Share of peak FLOP/s, call time", "ratio", "up", 4, 0.05),
    _timing("matmul_tflops", "Matrix product, bf16", "TFLOP/s", "up", 1, 0.05),
    _timing("cold_compile_s", "Cold compile time", "s", "down", 2, 0.15),
    _timing("warm_compile_s", "Warm compile time", "s", "down", 2, 0.15),
    _timing("peak_rss_bytes", "Peak memory of the process", "B", "down", 0, 0.15),
    _timing("eager_gpu_busy_ms", "GPU busy time, eager", "ms", "down", 4, 0.05),
    _timing("triton_time_share", "Share of GPU time in kernels with known bytes", "ratio", "none", 3, 0.05),
    _timing("speedup_other_batch", "Speedup at 3/4 of the batch", "x", "up", 3, 0.05),
    _timing("compiled_latency_other_batch_ms", "Latency, compiled, 3/4 of the batch", "ms", "down", 4, 0.05),
    _timing("eager_latency_other_batch_ms", "Latency, eager, 3/4 of the batch", "ms", "down", 4, 0.05),
    _timing("compiled_peak_memory_bytes", "Peak memory, compiled, allocated", "B", "down", 0, 0.15),
    _timing("eager_peak_memory_bytes", "Peak memory, eager, allocated", "B", "down", 0, 0.15),
    _timing("compiled_peak_reserved_bytes", "Peak memory, compiled, reserved", "B", "down", 0, 0.15),
    _timing("eager_peak_reserved_bytes", "Peak memory, eager, reserved", "B", "down", 0, 0.15),
    _timing("private_pool_bytes", "Memory held by CUDA graphs", "B", "down", 0, 0.15),
    _timing("eager_peak_rss_bytes", "Peak memory of the process, eager", "B", "down", 0, 0.15),
    _timing("accuracy_rmse_ratio", "Compiled error / eager error", "x", "down", 3, 0.15),
    _signed("accuracy_cosine", "Cosine similarity to eager", "", "up", 6, 0.01),
    _timing("warm_to_cold_ratio", "Warm / cold compile time", "ratio", "down", 3, 0.15),
    _signed("compile_time_reduction", "Compile time saved by the cache", "ratio", "up", 3, 0.05),
    _timing("cache_bytes", "Compile cache size", "B", "down", 0, 0.15),
    _count("cache_entries", "Compile cache files", "none"),
    _count("cache_hits", "Cache hits", "none"),
    _count("cache_misses", "Cache misses", "none"),
    _count("kernel_count", "Kernels", "none"),
    _count("recompiles", "Recompiles"),
    _timing("same_choice_ratio", "Same-choice time", "ratio", "down", 4, 0.01),
    _timing("autotune_regret", "Autotune regret", "ratio", "down", 4, 0.05),
    _count("kernel_variants", "Kernel variants", "none"),
)
_OF_FORMATS = (  # of outside formats, by their modules in runner/formats
    # torch_trace
    _timing("entire_frame_compile_time_s", "Compile time, all functions", "s", "down", 3, 0.15),
    _timing("backend_compile_time_s", "Compile time, AOT autograd and inductor", "s", "down", 3, 0.15),
    _timing("inductor_compile_time_s", "Compile time, inductor", "s", "down", 3, 0.15),
    _timing("code_gen_time_s", "Compile time, code generation", "s", "down", 3, 0.15),
    _timing("backward_compile_time_s", "Compile time, backward", "s", "down", 3, 0.15),
    _timing("triton_compile_time_s", "Compile time, Triton", "s", "down", 3, 0.15),
    _timing("autotune_time_s", "Autotuning while compiling", "s", "down", 3, 0.15),
    _timing("runtime_autotune_time_s", "Autotuning at the first call", "s", "down", 3, 0.15),
    _timing("cudagraphify_time_s", "Recording of CUDA graphs", "s", "down", 3, 0.15),
    _timing("pre_grad_pass_time_s", "Graph passes before autograd", "s", "down", 3, 0.15),
    _timing("joint_graph_pass_time_s", "Graph passes on the joint graph", "s", "down", 3, 0.15),
    _timing("post_grad_pass_time_s", "Graph passes after autograd", "s", "down", 3, 0.15),
    _timing("time_before_restart_s", "Tracing that was begun anew", "s", "down", 3, 0.15),
    _count("compiles", "Compiles"),
    _count("functions_compiled", "Functions compiled", "none"),
    _count("compile_failures", "Failed compiles"),
    _count("guards", "Guards", "none"),
    _count("graph_ops", "Operations in graphs", "none"),
    # operator_benchmark
    _timing("peak memory", "Peak memory", "KiB", "down", 1, 0.15),
    _timing("memory bandwidth", "Memory bandwidth", "GB/s", "up", 2, 0.05),
    # kernelbench
    _timing("latency_ms", "Latency", "ms", "down", 4, 0.05),
    _timing("latency_min_ms", "Latency, least", "ms", "down", 4, 0.05),
    _timing("latency_max_ms", "Latency, largest", "ms", "none", 4, 0.05),
    _timing("latency_std_ms", "Latency, standard deviation", "ms", "none", 4, 0.15),
    # tritonbench
    _timing("tflops", "Throughput", "TFLOP/s", "up", 2, 0.05),
    _timing("gbps", "Memory bandwidth", "GB/s", "up", 2, 0.05),
    _timing("walltime", "Wall time", "ms", "down", 4, 0.05),
    _timing("compile_time_ms", "Compile time", "ms", "down", 1, 0.15),
    # xla_report
    _timing("xla_compile_time", "Compile time (largest less median run), XLA", "s", "down", 3, 0.15),
    _timing("dynamo_compile_time", "Compile time (largest less median run), dynamo", "s", "down", 3, 0.15),
)
_HEADLINE = {
    "device_latency_ms", "gpu_busy_ms", "device_bandwidth_gbps", "device_speedup", "token_per_sec",
    "same_choice_ratio", "cold_compile_s", "warm_compile_s", "compilation_latency", "compilation_time(s)",
    "Cold compile time (s)", "Warm compile time (s)", "compiled_peak_memory_bytes", "dynamo_peak_mem",
    "peak_rss_bytes", "gpu_peak_mem", "cpu_peak_mem", "accuracy", "verification_code", "graph_breaks",
    "50th", "latency_us", "total_time", "latencies", "entire_frame_compile_time_s", "latency_ms",
    "median_total_time",
}  # fmt: skip
# By call time: headline only where the experiment has no device time (`role_of`).
_CALL_TIME = {"speedup": ("device_speedup",), "abs_latency": ("device_latency_ms", "gpu_busy_ms")}
_CALL_TIME["compiled_latency_ms"] = _CALL_TIME["abs_latency"]
_CALL_TIME["call_bandwidth_gbps"] = ("device_bandwidth_gbps",)
_CALL_TIME["memory_bandwidth(GB/s)"] = ("device_bandwidth_gbps",)
_DIAGNOSTIC = {
    "elapsed", "baseline", "triton_time_share", "cache_bytes", "cache_entries", "cache_hits", "cache_misses",
    "kernel_variants", "kernel_count", "num_of_calls", "xla_ExecuteTime_number", "calls_captured",
    "autograd_captures", "autograd_compiles", "total_aot_graphs", "ok_aot_graphs", "graphs", "graph_calls",
    "captured_ops", "total_ops", "model_coverage_ratio", "functions_compiled", "guards", "graph_ops",
    "latency_min_ms", "latency_max_ms", "latency_std_ms",
    "flops_utilization",  # the one script that writes it multiplies time by FLOPs
}  # fmt: skip


def _role(name: str) -> Role:
    if name in _HEADLINE:
        return "headline"
    return "diagnostic" if name.removeprefix("accuracy_") in _DIAGNOSTIC else "detail"


METRICS: dict[str, MetricInfo] = {
    metric.name: replace(metric, role=_role(metric.name))
    for metric in (
        *_UPSTREAM, *_HUD, *_COUNTS, *_LISTED, *_XLA, *_TORCHBENCH, *_INSTRUCTIONS, *_KERNELS, *_OURS,
        *_OF_FORMATS,
    )
}  # fmt: skip

# Families of names that no list can hold: one name for each phase, operation or counter.
_PHASE = _timing("", "", "s", "down", 3, 0.15)
# A name's end says what it is, whatever it begins with: `triton_speedup` is no phase of the compiler.
_SUFFIXES = (
    (re.compile(r"(.+[\W_])?speedup([\W_]?(\((wrt .+|x)\)|(vs|over)[\W_].+|geomean|avg))?", re.IGNORECASE),
     _timing("", "", "x", "up", 3, 0.05)),
    (re.compile(r"(.+[\W_])?latency([\W_]?\(?(?P<unit>ms|us|s)\)?)?(-avg)?"),
     _timing("", "", "", "down", 4, 0.05)),
    (re.compile(r"(.+[\W_])?(compile|autotune|fwd|bwd)[ _]time([\W_]*\(?(?P<unit>ms|us|s)\)?)?"),
     _timing("", "", "", "down", 3, 0.15)),
    (re.compile(r"(.+[\W_])?(mean|median|std|p[0-9]+)_(itl|tpot|ttft|e2el)_(?P<unit>ms)"),
     _timing("", "", "", "down", 3, 0.05)),
    (re.compile(r"(.+[\W_])?tflops(-avg)?"), _timing("", "", "TFLOP/s", "up", 2, 0.05)),
    (re.compile(r"(.+[\W_])?(gbps|GB/s)(-avg)?"), _timing("", "", "GB/s", "up", 1, 0.05)),
    # tritonbench and Helion write 1 for outputs that agree with the baseline's, else 0
    (re.compile(r".+[\W_]accuracy"), MetricInfo("", "", "", "up", "deterministic", 2, 0.0)),
    (re.compile(r"mem_footprint_compression_ratio"), METRICS["compression_ratio"]),
)  # fmt: skip
_FAMILIES = (
    # XLA's maps: <map>.<operation>.<one of the names above>, dynamo_counters.<group>.<counter>
    (re.compile(r"(xla_unlowered_ops|inductor_ops)\..+\.num_of_calls"), METRICS["num_of_calls"]),
    (re.compile(r"(xla_unlowered_ops|inductor_ops)\..+_time_s"), METRICS["self_cpu_time_s"]),
    (re.compile(r"dynamo_counters\..+"), replace(_count("", "", "none"), signed=True, role="diagnostic")),
    # operators: speedup over shapes by our clocks, each shape once or as often as models call it
    (re.compile(r"(weighted_)?(call|device)_(20|50|80)th"), _timing("", "", "x", "up", 3, 0.05)),
    # dynamo's compile phases, as *_compilation_metrics.csv names them
    (
        re.compile(
            r"(_compile|pass|OutputGraph|GraphLowering|Scheduler|PythonWrapperCodegen|CppWrapper\w*"
            r"|PyCodeCache|async_compile|TritonBundler|CachingAutotuner|CUDAGraphNode|CudaGraph\w*"
            r"|cudagraphify|compile_fx|TritonTemplate\w*|AsyncCompile|FxGraphCache|AOTAutogradCache"
            r"|DynamoGuards|WorkerStart\w*|KernelArg\w*)\..+"
        ),
        _PHASE,
    ),
    (
        re.compile(
            r"compile_attempt_\d+|bytecode_tracing|get_fake_value|create_proxy|build_guards|gc"
            r"|wrap_to_fake_tensor_and_record|variable_builder_call|insert_deferred_runtime_asserts"
            r"|inductor_codecache_torch_key|create_aot_dispatcher_function|aot_collect_metadata"
            r"|_recursive_\w+_passes|compile_fx_inner|fx_codegen_and_compile|additional_fake_tensor_prop"
            r"|entire_frame_compile|entire_backward_compile|backend_compile|inductor_compile"
            r"|code_gen|aot_(trace|forward|inference|joint|backward)\w*|min_cut_rematerialization_partition"
            r"|compile_file|triton_\w+|joint_graph_passes|post_grad_passes|pre_grad_passes"
        ),
        _PHASE,
    ),
    # PyTorch/XLA's report: <function>_<metric>
    (re.compile(r"(xla_|dynamo_)?(min|median|max|mean)_\w*time(_s)?"), _timing("", "", "s", "down", 4, 0.05)),
    (re.compile(r"(xla_|dynamo_)?std_\w*time(_s)?"), _timing("", "", "s", "none", 4, 0.15)),
)

# Of compiling, or of results: no process with forced choices measures them.
_NOT_OF_RUNNING = {
    "cold_compile_s", "warm_compile_s", "compilation_time(s)", "compilation_latency",
    "accuracy_compilation_latency", "warm_to_cold_ratio", "compile_time_reduction", "Cold compile time (s)",
    "Warm compile time (s)", "Speedup (%)", "compression_ratio", "accuracy_rmse_ratio", "accuracy_cosine",
}  # fmt: skip


def is_of_running(metric: str) -> bool:
    """Return whether the metric tells how fast compiled code runs, or which kernels it has: not compile time,
    caches, memory, accuracy or counts of graphs."""
    info = metric_info(metric)
    timed = info.kind == "timing" and info.unit != "B" and metric not in _NOT_OF_RUNNING
    return timed or metric == "kernel_count"


def is_number(metric: str) -> bool:
    """Return whether the registry knows the metric as a number; an unknown metric may have text values."""
    return is_known(metric) and metric_info(metric).kind != "status"


@lru_cache(maxsize=4096)
def is_known(metric: str) -> bool:
    """Return whether the registry has the metric, or a family of names that it belongs to."""
    return metric in METRICS or any(pattern.fullmatch(metric) for pattern, _info in (*_SUFFIXES, *_FAMILIES))


def says_unit(metric: str) -> bool:
    """Return whether the registry knows the metric's unit, or that it has none."""
    return metric in METRICS or bool(metric_info(metric).unit)


def device_time_of(metric: str, present: Container[str]) -> str:
    """Return the metric that tells the same by device time, where the experiment has it, else this one."""
    return next((other for other in _CALL_TIME.get(metric, ()) if other in present), metric)


def role_of(metric: str, present: Container[str]) -> Role:
    """Return what a metric may do in an experiment that also has the metrics `present`: call time is headline
    only where there is no device time, as on a CPU and in uploads."""
    if metric in _CALL_TIME and not any(other in present for other in _CALL_TIME[metric]):
        return "headline"
    return metric_info(metric).role


@lru_cache(maxsize=4096)  # every record of an upload asks
def metric_info(name: str) -> MetricInfo:
    """Return the registry's row, or one without unit or direction for an unknown name."""
    if name in METRICS:
        return METRICS[name]
    for pattern, info in (*_SUFFIXES, *_FAMILIES):
        if found := pattern.fullmatch(name):
            unit = found.groupdict().get("unit")
            return replace(info, name=name, title=name, unit=canonical(unit) if unit else info.unit)
    return MetricInfo(name, name, "", "none", "timing", 4, signed=True)
