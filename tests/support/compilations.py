"""Compilations for tests: small ones, and four measured ones of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.schema.compilations import Compiled, Kernel, digest

MOBILENET = Path(__file__).parents[1] / "judging" / "mobilenetv2_100_h200.json"
OTHER_CHOICE = 1.2  # the autotuner's configurations of that model lie 25 to 66 % apart


def kernel(
    name: str,
    time_us: float | None = 10.0,
    *,
    config: str = "XBLOCK=1024 num_warps=4",
    code: str = "",
    **more: Any,
) -> Kernel:
    """A kernel whose slot is its name, and whose binary is its choice with `code`."""
    choice = digest(name, config)
    fields = {"kind": "pointwise", "origins": (f"aten.{name}",), "config": config, **more}
    return Kernel(digest(name), choice, digest(choice, code), name, time_us=time_us, **fields)


def compiled(*kernels: Kernel, gaps_us: float = 5.0, overlap_us: float = 0.0, **more: Any) -> Compiled:
    """A compilation whose busy time is what its kernels add up to."""
    fields = {"gaps_us": gaps_us, "overlap_us": overlap_us, **more}
    fields.setdefault("busy_us", total_us(kernels) - overlap_us if kernels else None)
    return Compiled(kernels, **fields)


def total_us(kernels: Iterable[Kernel]) -> float:
    return sum(one.time_us or 0.0 for one in kernels)


def mobilenet() -> list[Compiled]:
    """Four compilations of mobilenetv2_100 on one H200. A Triton kernel far from its fastest time has the
    other choice: each has two levels, 25 to 66 % apart, that repeat to 1 %."""
    measured = json.loads(MOBILENET.read_text())
    found = []
    for place in range(4):
        kernels = []
        for name, said in measured["kernels"].items():
            triton, time_us = name.startswith("triton_"), said["us"][place]
            slow = triton and time_us > OTHER_CHOICE * min(said["us"])
            config = ("XBLOCK=512 num_warps=8" if slow else "XBLOCK=1024 num_warps=4") if triton else ""
            about = {"kind": "pointwise" if triton else "library", "bytes": said.get("bytes")}
            origins = (f"aten.{name.rpartition('_')[0].removeprefix('triton_poi_fused_')}",)
            kernels.append(kernel(name, time_us, config=config, origins=origins, **about))
        found.append(compiled(*kernels))
    return found
