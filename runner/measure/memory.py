"""Peak memory of one way of running a model, alone in its process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from runner.measure.device import Device
from runner.records import Json

_GENERAL = (0, 0)  # id of the pool that is not a CUDA graph's


@dataclass(frozen=True)
class Peaks:
    """Bytes. On CUDA what the allocator gave out and what it held at most; on a CPU `resident` alone."""

    allocated: int = 0
    reserved: int = 0
    private_pools: int = 0  # held for CUDA graphs at the end
    resident: int = 0


def reset(device: Device) -> None:
    """Peaks count from here on; memory that is free goes back first."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory becomes what it is now


def peaks(device: Device) -> Peaks:
    """Since `reset`."""
    if device.type == "cpu":
        return Peaks(resident=high_water_bytes(Path("/proc/self/status").read_text()))
    torch.cuda.synchronize()
    return Peaks(
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        private_pools=private_pool_bytes(torch.cuda.memory_snapshot()),
    )


def private_pool_bytes(segments: Iterable[Mapping[str, Json]]) -> int:
    """Bytes of the segments that belong to CUDA graphs' pools."""
    return sum(
        int(segment["total_size"])
        for segment in segments
        if tuple(segment.get("segment_pool_id", _GENERAL)) != _GENERAL
    )


def high_water_bytes(status: str) -> int:
    """VmHWM in the text of /proc/self/status."""
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
