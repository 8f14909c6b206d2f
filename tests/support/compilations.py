"""Compilations for tests: small ones, and four measured ones of a model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hud.models import Compilation, Environment, Experiment, KernelBinary, KernelCode, Run
from hud.models import Kernel as KernelRow
from runner.schema.compilations import Compiled, Kernel, digest
from tests.support.factories import create_environment, create_experiment, create_run

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


def store(
    found: Compiled,
    *,
    experiment: Experiment | None = None,
    run: Run | None = None,
    environment: Environment | None = None,
    repeat: int = 0,
    side: int = 0,
    code: Mapping[str, str] = MappingProxyType({}),
) -> Compilation:
    """Store a compilation of a run, with the source of binaries by the kernel's name in `code`."""
    owner = run or create_run()
    pks = []
    for one in found.kernels:
        said = {name: getattr(one, name) for name in ("slot", "choice", "binary", "name", "kind", "config")}
        counts = {"bytes": one.bytes, "flops": one.flops, "candidates": one.candidates}
        place = uuid.UUID(digest(*map(str, (*said.values(), *counts.values()))) * 2)
        row = KernelRow.objects.get_or_create(
            digest=place, defaults={**said, **counts, "origins": list(one.origins)}
        )
        pks.append(row[0].pk)
        if one.name in code:
            text = code[one.name]
            source = KernelCode.objects.get_or_create(
                digest=uuid.UUID(digest(text) * 2), defaults={"text": text}
            )
            KernelBinary.objects.get_or_create(binary=one.binary, defaults={"code": source[0]})
    said = found.to_json()
    return Compilation.objects.create(
        run=owner,
        experiment=experiment or create_experiment(),
        environment=environment or create_environment(gpu_uuid="GPU-1"),
        repeat=repeat,
        side=side,
        number=None if side else repeat,
        order_time=owner.order_time,
        variant=found.variant(),
        kernels=pks,
        times_us=[one.time_us for one in found.kernels],
        calls=[one.calls for one in found.kernels],
        **{name: getattr(found, name) for name in ("busy_us", "gaps_us", "overlap_us")},
        **{
            name: said.get(name, empty)
            for name, empty in (
                ("graph_breaks", []),
                ("recompiles", []),
                ("cudagraph_skips", []),
                ("phases_s", {}),
                ("caches", {}),
            )
        },
    )
