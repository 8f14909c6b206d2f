"""The registry of metrics: every name of the five systems and ours, with unit and direction.

A name that is not here is stored without a direction and never coloured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["up", "down", "none"]  # up: a larger value is better
Kind = Literal["timing", "deterministic", "status"]


@dataclass(frozen=True)
class MetricInfo:
    """`floor` is the smallest relative change that may count; any change of a deterministic metric does."""

    name: str
    title: str
    unit: str
    direction: Direction
    kind: Kind = "timing"
    precision: int = 2  # digits after the point on a page
    floor: float = 0.05


def _timing(  # noqa: PLR0917 - a table reads best in rows
    name: str, title: str, unit: str, direction: Direction, precision: int, floor: float
) -> MetricInfo:
    return MetricInfo(name, title, unit, direction, "timing", precision, floor)


def _count(name: str, title: str, direction: Direction = "down") -> MetricInfo:
    return MetricInfo(name, title, "count", direction, "deterministic", 0, 0.0)


# The floors are those of PyTorch's HUD: speedup and bandwidth 5 %, compile time and peak memory 15 %.
_UPSTREAM = (
    _timing("speedup", "Speedup", "x", "up", 3, 0.05),
    _timing("abs_latency", "Latency, compiled", "ms", "down", 3, 0.05),
    _timing("compilation_latency", "Compile time, as PyTorch's script takes it", "s", "down", 2, 0.15),
    _timing("accuracy_compilation_latency", "Compile time in the accuracy run", "s", "down", 2, 0.15),
    _timing("compression_ratio", "Memory compression", "x", "up", 3, 0.05),
    _timing("eager_peak_mem", "Peak memory, eager", "GB", "down", 3, 0.15),
    _timing("dynamo_peak_mem", "Peak memory, compiled", "GB", "down", 3, 0.15),
    MetricInfo("accuracy", "Accuracy", "", "none", "status", 0, 0.0),
    _timing("memory_bandwidth(GB/s)", "Memory bandwidth, as gpt-fast takes it", "GB/s", "up", 2, 0.05),
    # time multiplied by flops: it grows when the code gets slower, so its direction is nobody's
    _timing("flops_utilization", "gpt-fast's flops_utilization", "ratio", "none", 2, 0.05),
    _timing("token_per_sec", "Tokens per second", "token/s", "up", 1, 0.05),
    _timing("compilation_time(s)", "Compile time", "s", "down", 2, 0.15),
    _timing("Cold compile time (s)", "Cold compile time", "s", "down", 2, 0.15),
    _timing("Warm compile time (s)", "Warm compile time", "s", "down", 2, 0.15),
    _timing("Speedup (%)", "Time saved by the cache", "%", "up", 1, 0.05),
    _timing("20th", "Speedup over shapes, 20th percentile", "x", "up", 3, 0.05),
    _timing("50th", "Speedup over shapes, median", "x", "up", 3, 0.05),
    _timing("80th", "Speedup over shapes, 80th percentile", "x", "up", 3, 0.05),
    _timing("abs", "Mean latency over shapes", "ms", "down", 4, 0.05),
    _timing("elapsed", "Time the measurement took", "s", "down", 2, 0.15),
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
_NO_DIRECTION = ("calls_captured", "autograd_captures", "autograd_compiles")
_COUNTS = tuple(
    _count(prefix + name, title + suffix, "none" if name in _NO_DIRECTION else "down")
    for name, title in _COUNT_TITLES.items()
    for prefix, suffix in (("", ""), ("accuracy_", ", accuracy run"))
)
_OURS = (
    _timing("device_bandwidth_gbps", "Memory bandwidth, device time", "GB/s", "up", 1, 0.03),
    _timing("call_bandwidth_gbps", "Memory bandwidth, call time", "GB/s", "up", 1, 0.05),
    _timing("share_of_ceiling", "Share of the measured ceiling", "ratio", "up", 3, 0.03),
    _timing("device_latency_ms", "Latency, device time (graph replay)", "ms", "down", 4, 0.03),
    _timing("compiled_latency_ms", "Latency, compiled, call time", "ms", "down", 4, 0.05),
    _timing("eager_latency_ms", "Latency, eager, call time", "ms", "down", 4, 0.05),
    _timing("back_to_back_latency_ms", "Latency, compiled, back to back", "ms", "down", 4, 0.05),
    _timing("gpu_busy_ms", "GPU busy time", "ms", "down", 4, 0.05),
    _timing("device_speedup", "Speedup, device time", "x", "up", 3, 0.03),
    _timing("flops_utilization_of_peak", "Share of peak FLOP/s", "ratio", "up", 4, 0.05),
    _timing("matmul_tflops", "Matrix product, bf16", "TFLOP/s", "up", 1, 0.05),
    _timing("cold_compile_s", "Cold compile time", "s", "down", 2, 0.15),
    _timing("warm_compile_s", "Warm compile time", "s", "down", 2, 0.15),
    _timing("peak_rss_bytes", "Peak memory of the process", "B", "down", 0, 0.15),
    _count("cache_hits", "Cache hits", "none"),
    _count("cache_misses", "Cache misses", "none"),
    _count("kernel_count", "Kernels", "none"),
    _count("recompiles", "Recompiles"),
)

METRICS: dict[str, MetricInfo] = {metric.name: metric for metric in (*_UPSTREAM, *_COUNTS, *_OURS)}


def metric_info(name: str) -> MetricInfo:
    """The registry's row, or one without unit or direction for a name it does not hold."""
    return METRICS.get(name) or MetricInfo(name, name, "", "none", "timing", 4)
