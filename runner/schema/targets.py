"""Targets the product ships: the value a metric should reach on an arch.

Order of precedence, as the pages apply it: a row an operator set, then a fraction of the arch's
measured ceiling (below), then the record's own target where it was made for this arch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetFraction:
    """`fraction` of the arch's copy bandwidth (suite `ceilings`, case `copy`), as a value of `metric`."""

    metric: str
    case: str
    dtype: str
    size: str  # the knob D: "1024" … "16384", or "mean"
    fraction: float


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


def gpt_fast_target(case: str, dtype: str) -> str | None:
    """gpt-fast's target for the mean over its sizes, None for a case it does not have."""
    return _GPT_FAST_TARGETS.get((case, dtype))


def gpt_fast_model_target(case: str, dtype: str, metric: str) -> str | None:
    """gpt-fast's target for a model, None for one it does not have."""
    targets = _GPT_FAST_MODEL_TARGETS.get((case, dtype), ())
    return dict(zip(_GPT_FAST_MODEL_METRICS, targets, strict=False)).get(metric)


# Read on two H200 cards (copy 4258 and 4284 GB/s; torch 2.11.0, `hud/samples/runner-h200` is the second):
# 5 % below the lower of the two shares that a shape reached by graph replay. A share above 1 is no error:
# a kernel that only reads is faster than a copy, which also writes (`ceilings/read` was 4601 GB/s).
_SIZES = ("1024", "4096", "8192", "16384", "mean")
_DEVICE_FRACTIONS = {
    ("layer_norm", "bfloat16"): (0.506, 0.579, 0.774, 0.816, 0.670),
    ("gemv", "int8"): (0.097, 0.547, 0.741, 0.798, 0.547),
    ("gemv", "bfloat16"): (0.173, 0.808, 0.951, 0.966, 0.724),
    ("gather_gemv", "int8"): (0.148, 0.634, 0.675, 0.812, 0.567),
    ("gather_gemv", "bfloat16"): (0.284, 0.819, 0.938, 1.014, 0.764),
    ("mlp_layer_norm_gelu", "bfloat16"): (0.418, 0.697, 0.790, 0.860, 0.692),
}
# 5 % below the lowest mean that gpt-fast's own script read on an H200 (`hud/samples/pytorch-h200` and its
# repeat: layer_norm 2542.40 and 2648.50, gemv 1954.39 and 1971.42, 2764.64 and 2694.49, gather_gemv
# 2212.16 and 3013.02), as a share of the copy of 4258 GB/s. That clock moves by 4 to 8 % between runs.
_GPT_FAST_FRACTIONS = {
    ("layer_norm", "bfloat16"): 0.567,
    ("gemv", "int8"): 0.436,
    ("gemv", "bfloat16"): 0.601,
    ("gather_gemv", "int8"): 0.494,
    ("gather_gemv", "bfloat16"): 0.672,
}
FRACTIONS = (
    *(
        TargetFraction("device_bandwidth_gbps", case, dtype, size, fraction)
        for (case, dtype), fractions in _DEVICE_FRACTIONS.items()
        for size, fraction in zip(_SIZES, fractions, strict=True)
    ),
    *(
        TargetFraction("memory_bandwidth(GB/s)", case, dtype, "mean", fraction)
        for (case, dtype), fraction in _GPT_FAST_FRACTIONS.items()
    ),
)
