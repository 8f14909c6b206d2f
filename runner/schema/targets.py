"""Targets the product ships: the value a metric should reach on an arch.

Order of precedence, as the pages apply it: a row an operator set, then a fraction of the arch's
measured ceiling (below), then the record's own target where it was made for this arch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TargetFraction:
    """`fraction` of the arch's copy bandwidth (suite `ceilings`, case `copy`), as a value of `metric`."""

    metric: str
    case: str
    dtype: str
    size: str  # the case parameter D: "1024" … "16384", or "mean"
    fraction: float


GPT_FAST_SIZES = (1024, 4096, 8192, 16384)  # over which each of its micro-benchmarks is a mean
# gpt-fast writes these targets whatever the device; they are a 40 GB A100's.
GPT_FAST_TARGET_ARCH = "a100-40gb"
# (case, dtype) → the target as its script writes it, of `memory_bandwidth(GB/s)` or `flops_utilization`.
_GPT_FAST_TARGETS = {
    ("layer_norm", "bfloat16"): "950",
    ("gemv", "int8"): "870",
    ("gemv", "bfloat16"): "990",
    ("gather_gemv", "int8"): "990",
    ("gather_gemv", "bfloat16"): "1060",
    ("mlp_layer_norm_gelu", "bfloat16"): "0.8",
}


# The same for its models, by metric.
_GPT_FAST_MODEL_METRICS = ("token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)")
_GPT_FAST_MODEL_TARGETS = {
    ("Llama-2-7b-chat-hf", "bfloat16"): ("94", "1253", "133"),
    ("Llama-2-7b-chat-hf", "int8"): ("144", "957", "136"),
    ("Mixtral-8x7B-v0.1", "int8"): ("175", "1130", "133"),
}


def mean_over(sizes: Iterable[int]) -> dict[str, Any]:
    """Return the case parameters of a mean over these sizes."""
    return {"D": "mean", "sizes": ",".join(map(str, sorted(sizes)))}


def gpt_fast_target(case: str, dtype: str) -> str | None:
    """Return gpt-fast's target for the mean over its sizes, or None."""
    return _GPT_FAST_TARGETS.get((case, dtype))


def gpt_fast_model_target(case: str, dtype: str, metric: str) -> str | None:
    """Return gpt-fast's target for a model, or None."""
    targets = _GPT_FAST_MODEL_TARGETS.get((case, dtype), ())
    return dict(zip(_GPT_FAST_MODEL_METRICS, targets, strict=False)).get(metric)
