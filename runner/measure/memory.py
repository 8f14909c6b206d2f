"""Peak memory of a model in eager mode or compiled, alone in its process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from runner.measure.state.device import Device
from runner.schema.records import Json

_GENERAL_POOL = (0, 0)  # not a CUDA graph's


@dataclass(frozen=True)
class Peaks:
    """Bytes. On CUDA the most the allocator gave out and held; on a CPU only `resident`."""

    allocated: int = 0
    reserved: int = 0
    private_pools: int = 0  # held for CUDA graphs at the end
    resident: int = 0


def reset(device: Device) -> None:
    """Release free memory and let peaks count from here on."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory becomes what it is now


def peaks(device: Device) -> Peaks:
    """Return the peaks since `reset`."""
    if device.type == "cpu":
        return Peaks(resident=high_water_bytes(Path("/proc/self/status").read_text()))
    torch.cuda.synchronize()
    return Peaks(
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        private_pools=private_pool_bytes(torch.cuda.memory_snapshot()),
    )


def private_pool_bytes(segments: Iterable[Mapping[str, Json]]) -> int:
    """Return the bytes of the segments that belong to CUDA graphs' pools."""
    return sum(
        int(segment["total_size"])
        for segment in segments
        if tuple(segment.get("segment_pool_id", _GENERAL_POOL)) != _GENERAL_POOL
    )


def high_water_bytes(status: str) -> int:
    """Return VmHWM in the text of /proc/self/status."""
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
