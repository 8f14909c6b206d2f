"""gpt-fast's micro-benchmarks, and an MLP over a batch, whose FLOP utilisation says something."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from runner.schema.metrics import GPT_FAST_SIZES, mean_over
from runner.schema.options import OptionValue
from runner.schema.suite import Case, Expected, Suite, TargetFraction, TaskSpec
from runner.suites.tables import options_of, rows_of

# A CPU takes smaller ones than gpt-fast, so that one kernel stays under a minute.
SIZES = {"cuda": GPT_FAST_SIZES, "cpu": (256, 512, 1024, 2048)}
_SIZES = re.compile(r"[0-9]{1,5}(,[0-9]{1,5})*")

_METRICS = (
    *("eager_latency_ms", "compiled_latency_ms", "back_to_back_latency_ms", "call_bandwidth_gbps"),
    "speedup",
)
_METRICS_CUDA = ("device_latency_ms", "device_bandwidth_gbps", "share_of_ceiling", "device_speedup")
_COMPUTE_BOUND = ("mlp_batched",)  # its time is that of its FLOPs: a share of the memory's speed says nothing
# A row of `targets.csv` has the shares of a host's copy bandwidth that a case should reach, by size.
# `device_bandwidth_gbps`: read on two H200 cards (copy 4258 and 4284 GB/s; torch 2.11.0,
# `hud/samples/runner-h200` is the second): 5 % below the lower of the two shares that a shape reached by
# graph replay. A share above 1 is no error: a kernel that only reads is faster than a copy, which also
# writes (`ceilings/read` was 4601 GB/s).
# `memory_bandwidth(GB/s)`: 5 % below the lowest mean that gpt-fast's own script read on an H200
# (`hud/samples/pytorch-h200` and its repeat: layer_norm 2542.40 and 2648.50, gemv 1954.39 and 1971.42,
# 2764.64 and 2694.49, gather_gemv 2212.16 and 3013.02), as a share of the copy of 4258 GB/s. That clock
# moves by 4 to 8 % between runs.
_TARGET_SIZES = (*map(str, GPT_FAST_SIZES), "mean")


@dataclass(frozen=True)
class MicroSuite(Suite):
    """A task measures each size D, and the mean over all where they are gpt-fast's or those of the device."""

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        sizes = sizes_of(task)
        metrics = size_metrics(task.case, task.device)
        found = [Expected(task.case, task.backend, {"D": size}, metrics) for size in sizes]
        if has_mean(sizes, task.device):
            means = tuple(name for name in metrics if not name.endswith("_ms"))
            found.append(Expected(task.case, task.backend, mean_over(sizes), means))
        return found

    def asked_knobs(self, stored: Mapping[str, Any]) -> dict[str, OptionValue]:
        """Ask for the sizes of a mean, else for a list of one size."""
        asked = {name: value for name, value in stored.items() if (name, value) != ("D", "mean")}
        sizes = str(asked.pop("sizes", ""))
        if isinstance(size := asked.get("D"), int):
            asked["D"] = [size]
        elif _SIZES.fullmatch(sizes):
            asked["D"] = [*map(int, sizes.split(","))]
        return asked

    def complete_knobs(self, knobs: Mapping[str, Any], device: str) -> Mapping[str, Any]:
        """Name the sizes of a mean, which runners of earlier releases left out: they were the device's."""
        unsaid = knobs.get("D") == "mean" and "sizes" not in knobs
        return {**knobs, **mean_over(SIZES.get(device, GPT_FAST_SIZES))} if unsaid else knobs


def sizes_of(task: TaskSpec) -> Sequence[int]:
    return cast("Sequence[int]", task.knobs.get("D") or SIZES[task.device])


def has_mean(sizes: Sequence[int], device: str) -> bool:
    """Return whether a task with these sizes derives the mean over them."""
    return set(sizes) in (set(SIZES[device]), set(GPT_FAST_SIZES))


def size_metrics(case: str, device: str) -> tuple[str, ...]:
    """Return the metrics of one size, apart from counts."""
    metrics = _METRICS + (_METRICS_CUDA if device == "cuda" else ())
    return tuple(name for name in metrics if case not in _COMPUTE_BOUND or not name.endswith("_gbps"))


SUITE = MicroSuite(
    name="micro",
    title="gpt-fast's micro-benchmarks",
    target_fractions=tuple(
        TargetFraction(row["metric"], row["case"], row["dtype"], size, float(row[size]))
        for row in rows_of("micro", "targets")
        for size in _TARGET_SIZES
        if row[size]
    ),
    class_packages=("numpy",),
    headline_metrics=(
        *("memory_bandwidth(GB/s)", "device_bandwidth_gbps", "call_bandwidth_gbps", "share_of_ceiling"),
        *("flops_utilization_of_peak", "device_latency_ms", "compiled_latency_ms", "flops_utilization"),
    ),
    cases=(
        Case("layer_norm", "LayerNorm over 4096 rows of D", ("bfloat16",)),
        Case("gemv", "D×D matrix times vector", ("int8", "bfloat16")),
        Case("gather_gemv", "Two of eight D×D matrices times vector", ("int8", "bfloat16")),
        Case("mlp_layer_norm_gelu", "Linear, LayerNorm, Linear, LayerNorm of one vector of D", ("bfloat16",)),
        Case("mlp_batched", "Linear, LayerNorm, GELU, Linear, LayerNorm of 4096 rows of D", ("bfloat16",)),
    ),
    backends=("inductor",),
    inductor_options=True,
    compiles=True,
    options=options_of("micro"),
)
