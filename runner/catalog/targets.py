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
