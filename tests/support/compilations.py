"""Compilations for tests: small ones, and four measured ones of a model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hud.models import (
    BinaryList,
    Compilation,
    Environment,
    Experiment,
    KernelBinary,
    KernelCode,
    LineList,
    Run,
)
from hud.models import Kernel as KernelRow
from runner.schema.compilations import ANATOMY, Compiled, Kernel, digest
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


def compiled(*kernels: Kernel, gaps_us: float | None = 5.0, overlap_us: float = 0.0, **more: Any) -> Compiled:
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
            origins = (f"aten.{name.partition('_fused_')[2].rpartition('_')[0] or name}",)
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
    draw: int | None = None,
    code: Mapping[str, str] = MappingProxyType({}),
) -> Compilation:
    """Store a compilation of a run, with the source of binaries by the kernel's name in `code`."""
    owner = run or create_run()
    pks = []
    for one in found.kernels:
        said = {name: getattr(one, name) for name in ("slot", "choice", "name", "kind", "config")}
        counts = {"calls": one.calls, "bytes": one.bytes, "flops": one.flops, "candidates": one.candidates}
        counts |= {name: getattr(one, name) for name in ANATOMY}
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
    binaries = [_signed(one.binary) for one in found.kernels]
    lines = ["\n".join(one.lines) for one in found.kernels]
    said = found.to_json()
    return Compilation.objects.create(
        run=owner,
        experiment=experiment or create_experiment(),
        environment=environment or create_environment(gpu_uuid="GPU-1"),
        repeat=repeat,
        side=side,
        draw=draw,
        number=None if side or draw is not None else repeat,
        order_time=owner.order_time,
        variant=found.variant(),
        kernels=pks,
        times_us=[one.time_us for one in found.kernels],
        binary_list=BinaryList.objects.create(binaries=binaries) if binaries else None,
        binary_places=list(range(len(binaries))),
        line_list=LineList.objects.get_or_create(
            digest=uuid.UUID(digest(*lines) * 2), defaults={"lines": lines}
        )[0]
        if any(lines)
        else None,
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


def _signed(key: str) -> int:
    number = int(key, 16)
    return number - 2**64 if number >= 2**63 else number


BEFORE = """@triton.jit
def triton_poi_fused__native_batch_norm_legit_no_training_hardtanh_7(
    in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr0,
    xnumel, XBLOCK : tl.constexpr):
    xnumel = 57802752
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)[:]
    x2 = xindex
    x0 = (xindex % 144)
    tmp0 = tl.load(in_ptr0 + (x2), None).to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (x0), None, eviction_policy='evict_last').to(tl.float32)
    tmp3 = tl.load(in_ptr2 + (x0), None, eviction_policy='evict_last').to(tl.float32)
    tmp2 = tmp0 - tmp1
    tmp4 = 1e-05
    tmp5 = tmp3 + tmp4
    tmp6 = tl.sqrt_rn(tmp5)
    tl.store(out_ptr0 + (x2), tmp6, None)
"""
AFTER = (
    BEFORE.replace("tl.program_id(0) * XBLOCK", "tl.program_id(0).to(tl.int64) * XBLOCK")
    .replace("[:]\n    xmask", "[:].to(tl.int64)\n    xmask")
    .replace("tl.full([XBLOCK], True, tl.int1)[:]", "xindex < xnumel")
    .replace("(x2), None).to", "(x2), xmask).to")
)


def planted(found: Compiled) -> Compiled:
    """Return a compilation of mobilenetv2_100 with new code in two kernels and a lost fusion."""
    kernels = []
    for one in found.kernels:
        if one.name.endswith(("hardtanh_7", "hardtanh_4")):
            time_us = (one.time_us or 0.0) * 1.212
            kernels.append(replace(one, binary=digest(one.binary, "64 bits"), time_us=time_us))
        elif one.name.endswith("mean_25"):
            head, origin = "triton_poi_fused_", one.origins[0]
            kernels += [
                kernel(f"{head}hardtanh_25", 19.0, origins=(origin, "aten.hardtanh")),
                kernel(f"{head}mean_26", 16.4, origins=(origin, "aten.mean"), kind="reduction"),
            ]
        else:
            kernels.append(one)
    return replace(found, kernels=tuple(kernels), busy_us=total_us(kernels))
