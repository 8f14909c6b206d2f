"""The registry of metrics: every name of the five systems and ours, with unit and direction.

The rows are in `metrics.csv`, and families of names in `metric_families.csv`. A name that is in neither is
stored without a direction and never coloured. Units follow, and the targets that gpt-fast's scripts write.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import lru_cache
from sys import float_info
from typing import Any, Literal

from runner.schema.tables import rows

Direction = Literal["up", "down", "none"]  # up: a larger value is better
Kind = Literal["timing", "deterministic", "status"]
# headline: may open a regression; alone: also, in an experiment without a headline of how fast it runs;
# detail: judged and shown; diagnostic: shown only
Role = Literal["headline", "alone", "detail", "diagnostic"]
# times of what no compiler made: they move with the host
EAGER_TIMES = ("eager_device_latency_ms", "eager_gpu_busy_ms", "eager_latency_ms", "time_baseline")
STEP_METRICS = ("eager_latency_ms", "compiled_latency_ms", "speedup")  # by call time

# counts of PyTorch's harness, in the order of its columns
HARNESS_COUNTS = (
    *("calls_captured", "unique_graphs", "fallbacks_to_eager", "graph_breaks", "unique_graph_breaks"),
    *("autograd_captures", "autograd_compiles", "cudagraph_skips"),
)
# By call time: headline only where the experiment has no device time (`role_of`).
_CALL_TIME = {"speedup": ("device_speedup",), "abs_latency": ("device_latency_ms", "gpu_busy_ms")}
_CALL_TIME["compiled_latency_ms"] = _CALL_TIME["abs_latency"]
_CALL_TIME["call_bandwidth_gbps"] = ("device_bandwidth_gbps",)
_CALL_TIME["memory_bandwidth(GB/s)"] = ("device_bandwidth_gbps",)


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


def _info(row: dict[str, str]) -> MetricInfo:
    numbers = {"precision": int(row["precision"]), "floor": float(row["floor"])}
    typed: dict[str, Any] = {**row, **numbers, "signed": row["signed"] == "signed"}
    return MetricInfo(**typed)


METRICS = {row["name"]: _info(row) for row in rows(__file__, "metrics.csv")}
# Families of names that no list can hold: one name for each phase, operation or counter.
_FAMILIES = [
    (re.compile(row["name"]), METRICS[row["title"]] if row["title"] else _info(row))
    for row in rows(__file__, "metric_families.csv")
]

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


@lru_cache(maxsize=4096)
def is_known(metric: str) -> bool:
    """Return whether the registry has the metric, or a family of names that it belongs to."""
    return metric in METRICS or any(pattern.fullmatch(metric) for pattern, _info in _FAMILIES)


def says_unit(metric: str) -> bool:
    """Return whether the registry knows the metric's unit, or that it has none."""
    return metric in METRICS or bool(metric_info(metric).unit)


def device_time_of(metric: str, present: Collection[str]) -> str:
    """Return the metric that tells the same by device time, where the experiment has it, else this one."""
    return next((other for other in _CALL_TIME.get(metric, ()) if other in present), metric)


def role_of(metric: str, present: Collection[str]) -> Role:
    """Return what a metric may do in an experiment that has the metrics `present`: one that speaks for a
    benchmark `alone`, such as its own latency, is a headline where no other tells how fast it runs, and call
    time only where there is no device time, as on a CPU and in uploads."""
    if metric in _CALL_TIME and not any(other in present for other in _CALL_TIME[metric]):
        return "headline"
    role = metric_info(metric).role
    if role != "alone":
        return role
    return "detail" if any(map(_is_headline_of_running, present)) else "headline"


@lru_cache(maxsize=4096)
def _is_headline_of_running(metric: str) -> bool:
    is_headline = metric in _CALL_TIME or metric_info(metric).role == "headline"
    return is_headline and is_of_running(metric)


@lru_cache(maxsize=4096)  # every record of an upload asks
def metric_info(name: str) -> MetricInfo:
    """Return the registry's row, or one without unit or direction for an unknown name."""
    if name in METRICS:
        return METRICS[name]
    for pattern, info in _FAMILIES:
        if match := pattern.fullmatch(name):
            unit = match.groupdict().get("unit")
            return replace(info, name=name, title=name, unit=canonical_unit(unit) if unit else info.unit)
    return MetricInfo(name, name, "", "none", "timing", 4, signed=True, role="alone")


_UNIT_ROWS = rows(__file__, "units.csv")
# By unit: what it measures, and how many of the smallest one it is.
_UNITS = {row["unit"]: (row["quantity"], int(row["size"])) for row in _UNIT_ROWS if row["quantity"]}
_FACTORS = {"", "x", "ratio"}
_SPELLINGS, _WORDS = (
    {text: row["unit"] for row in _UNIT_ROWS for text in row[column].split()}
    for column in ("spellings", "words")
)


def canonical_unit(unit: str) -> str:
    """Return the spelling under which a unit is stored; an unknown one stays as it is."""
    return _SPELLINGS.get(unit) or _WORDS.get(unit.lower(), unit)


def quantity_of(unit: str) -> str:
    """Return what a canonical unit measures, such as time or bytes; the unit itself where no list has it."""
    return _UNITS.get(unit, (unit, 1))[0]


def convert(value: float, unit: str, to: str) -> float:
    """Return a number in another unit, computed in decimals: 1.005 s are 1005 ms. Both units are canonical.
    Raise ValueError for those of different things."""
    if unit == to or {unit, to} <= _FACTORS:
        return value
    (kind, numerator), (other, denominator) = _UNITS.get(unit, (unit, 1)), _UNITS.get(to, (to, 1))
    if kind != other:
        raise ValueError(f"{unit or 'a plain number'} cannot be converted to {to or 'a plain number'}")
    number = float(Decimal(repr(value)) * numerator / denominator)
    if value and not float_info.min <= abs(number) <= float_info.max:
        raise ValueError(f"{value:g} {unit} is too small or too large to be converted to {to}")
    return number


# What gpt-fast's scripts write whatever the device: the targets are a 40 GB A100's, as texts.
GPT_FAST_TARGET_ARCH = "a100-40gb"
GPT_FAST_SIZES = (1024, 4096, 8192, 16384)  # over which each of its micro-benchmarks is a mean
_GPT_FAST_TARGETS = {
    (row["case"], row["dtype"], row["metric"]): row["target"]
    for row in rows(__file__, "gpt_fast_targets.csv")
}


def mean_over(sizes: Iterable[int]) -> dict[str, Any]:
    """Return the case parameters of a mean over these sizes."""
    return {"D": "mean", "sizes": ",".join(map(str, sorted(sizes)))}


def gpt_fast_target(case: str, dtype: str, metric: str) -> str | None:
    """Return gpt-fast's target for a model, or for the mean over the sizes of a micro-benchmark, or None."""
    return _GPT_FAST_TARGETS.get((case, dtype, metric))
