"""What a task always leaves: of each of its experiments, the metrics that are either measured or missing for
a reason. Whoever launched a task tells by it what is missing (`runner/suites/outcome_records.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from runner.schema.plan import TaskSpec
from runner.suites import cache, huggingface, micro, operators, xla
from runner.suites.file import NAME as OWN_FILE
from runner.suites.torchdynamo.backend_names import backend_of, identity

STEP_METRICS = ("eager_latency_ms", "compiled_latency_ms", "speedup")  # by call time
CACHE_METRICS = (
    "cold_compile_s",
    "warm_compile_s",
    "warm_to_cold_ratio",
    "compile_time_reduction",
    "Cold compile time (s)",
    "Warm compile time (s)",
    "Speedup (%)",
)
XLA_METRICS = ("total_time", "per_iter_time")
KEPT_CACHES = "RUNNER_CACHES"  # in a child's environment: not its own, so that no compile is cold
_MICRO_METRICS = (
    *("eager_latency_ms", "compiled_latency_ms", "back_to_back_latency_ms", "call_bandwidth_gbps"),
    "speedup",
)
_MICRO_METRICS_CUDA = ("device_latency_ms", "device_bandwidth_gbps", "share_of_ceiling", "device_speedup")
_COMPUTE_BOUND = ("mlp_batched",)  # its time is that of its FLOPs: a share of the memory's speed says nothing
_OPERATORS_CUDA = ("device_latency_ms", "device_speedup")
_QUANTILES = ("20th", "50th", "80th")
GPT_FAST_SEQUENCE = ("token_per_sec", "memory_bandwidth(GB/s)")
GPT_FAST_DEVICE = ("gpu_busy_ms", "device_bandwidth_gbps", "share_of_ceiling")
GPT_FAST_COMPILE = ("compilation_time(s)", "cold_compile_s", "warm_compile_s")
# Of the suites of PyTorch's harness: a stage with the metrics that it has on every device, a GPU, a CPU.
_STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "accuracy": (("accuracy",), (), ()),
    "cold": (("speedup", "eager_latency_ms", "compiled_latency_ms", "back_to_back_latency_ms"), (), ()),
    "warm": (("warm_compile_s",), ("compiled_peak_memory_bytes", "gpu_busy_ms"), ("peak_rss_bytes",)),
    "eager": ((), ("eager_peak_memory_bytes", "eager_gpu_busy_ms"), ("eager_peak_rss_bytes",)),
}
_TESTS = {
    "both": ("accuracy", "cold", "warm", "eager"),
    "accuracy": ("accuracy",),
    "performance": ("cold", "warm", "eager"),
}


@dataclass(frozen=True)
class Always:
    """One experiment of a task, as its results name it, and the metrics that it always has."""

    case: str
    backend: str
    device: str
    knobs: Mapping[str, Any]
    metrics: tuple[str, ...]


def always(task: TaskSpec, variables: Mapping[str, str] = os.environ) -> list[Always]:
    """Of a task that runs with these variables."""
    found = {"micro": _micro, "operators": _operators, "cache": _cache, "gpt_fast": _gpt_fast}
    found |= {"xla": _xla, "ceilings": _ceilings}
    return list(found.get(task.suite, _torchdynamo)(task, variables))


def stage_metrics(stage: str, device: str, *, fresh: bool) -> tuple[str, ...]:
    """Of a stage of the suites of PyTorch's harness; with `fresh` caches the first compile is a cold one."""
    metrics, on_cuda, on_cpu = _STAGES[stage]
    cold = ("cold_compile_s",) if stage == "cold" and fresh else ()
    return (*metrics, *(on_cuda if device == "cuda" else on_cpu), *cold)


def size_metrics(case: str, device: str) -> tuple[str, ...]:
    """Of a size of a micro-benchmark, apart from counts."""
    metrics = _MICRO_METRICS + (_MICRO_METRICS_CUDA if device == "cuda" else ())
    return tuple(name for name in metrics if case not in _COMPUTE_BOUND or not name.endswith("_gbps"))


def operator_metrics(task: TaskSpec) -> tuple[str, ...]:
    """Of a recorded call of an operator."""
    on_cuda = task.device == "cuda" and task.setting("graph_replay")
    return (*STEP_METRICS, *(_OPERATORS_CUDA if on_cuda else ()))


def generation_metrics(task: TaskSpec) -> tuple[str, ...]:
    """Of a model of gpt-fast."""
    compile_metrics = GPT_FAST_COMPILE if task.setting("caches") == "fresh" else GPT_FAST_COMPILE[:1]
    return (
        *GPT_FAST_SEQUENCE,
        *STEP_METRICS,
        *(GPT_FAST_DEVICE if task.device == "cuda" else ()),
        *compile_metrics,
    )


def operators_of(task: TaskSpec) -> tuple[str, ...]:
    return operators.TWENTY if task.case == operators.FREQUENT else (task.case,)


def problem_of(record: Mapping[str, Any], task: TaskSpec, experiments: Sequence[Always]) -> str:
    """Why a record, one with all its parts, is none of this task with these experiments; '' where it is."""
    benchmark, model = record["benchmark"], record["model"]
    said = benchmark["extra_info"]
    free: tuple[str, ...] = ()  # knobs that differ within a task, or that a changed file changes
    beside: tuple[str, ...] = ()  # backends
    if task.suite == operators.SUITE.name:
        own_file = task.setting("inputs") == operators.OWN
        free, beside = ("shape", *(("inputs",) if own_file else ())), ("eager",)
    knobs = _without(said.get("knobs") or {}, free)
    for what, found, own in (
        ("suite", model.get("origins"), [[task.suite]]),
        ("case", model["name"], [one.case for one in experiments]),
        ("mode", benchmark.get("mode"), [task.mode]),
        ("dtype", benchmark.get("dtype"), [task.dtype]),
        ("backend", model.get("backend"), [*(one.backend for one in experiments), *beside]),
        ("device", said.get("device"), [one.device for one in experiments]),
        ("dynamic", bool(said.get("dynamic")), [task.dynamic]),
        ("knobs", knobs, [_without(one.knobs, free) for one in experiments]),
    ):
        if found not in own:
            return f"its {what} is {found!r}, not {own[0]!r}"
    return ""


def _without(knobs: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in knobs.items() if name not in names}


def _torchdynamo(task: TaskSpec, variables: Mapping[str, str]) -> Iterator[Always]:
    if task.suite == OWN_FILE:  # it has the knobs of the others, also where the file is not
        task = dataclasses.replace(task, suite=huggingface.SUITE.name)
    fresh = not variables.get(KEPT_CACHES) and task.setting("caches") != "kept"
    stages = _TESTS[str(task.setting("test"))]
    metrics = [metric for stage in stages for metric in stage_metrics(stage, task.device, fresh=fresh)]
    yield Always(task.case, backend_of(task).name(task.device), task.device, identity(task), tuple(metrics))


def _micro(task: TaskSpec, _variables: Mapping[str, str]) -> Iterator[Always]:
    whole = micro.SIZES[task.device]
    sizes = cast("Sequence[int]", task.knobs.get("D") or whole)
    metrics = size_metrics(task.case, task.device)
    for size in sizes:
        yield Always(task.case, task.backend, task.device, {"D": size}, metrics)
    if set(sizes) == set(whole):
        means = tuple(name for name in metrics if not name.endswith("_ms"))
        yield Always(task.case, task.backend, task.device, {"D": "mean"}, means)


def _operators(task: TaskSpec, variables: Mapping[str, str]) -> Iterator[Always]:
    inputs = operators.told_inputs(str(task.setting("inputs")), variables)
    knobs = {**task.identity(), "inputs": inputs}
    metrics = operator_metrics(task) if task.setting("shape") else _QUANTILES
    for operator in operators_of(task):
        yield Always(operator, task.backend, task.device, knobs, metrics)


def _cache(task: TaskSpec, _variables: Mapping[str, str]) -> Iterator[Always]:
    knobs = {**task.identity(), "origin": cache.ORIGINS[task.case]}
    yield Always(task.case, task.backend, task.device, knobs, CACHE_METRICS)


def _gpt_fast(task: TaskSpec, _variables: Mapping[str, str]) -> Iterator[Always]:
    yield Always(task.case, task.backend, task.device, task.identity(), generation_metrics(task))


def _xla(task: TaskSpec, _variables: Mapping[str, str]) -> Iterator[Always]:
    asked = [str(task.knobs.get(name, "")) for name in ("accelerator", "xla")]
    cell = xla.cell(task.backend, task.mode, task.device, *asked)
    knobs = xla.knobs_of(task.case, task.identity(), cell)
    metrics = (*(("verification_code",) if task.setting("verify") else ()), *XLA_METRICS)
    yield Always(task.case, cell.backend, cell.accelerator, knobs, metrics)


def _ceilings(task: TaskSpec, _variables: Mapping[str, str]) -> Iterator[Always]:
    bandwidth = "device_bandwidth_gbps" if task.device == "cuda" else "call_bandwidth_gbps"
    metric = "matmul_tflops" if task.case == "matmul" else bandwidth
    yield Always(task.case, task.backend, task.device, {}, (metric,))
