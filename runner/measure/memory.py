"""Peak memory of a model in eager mode or compiled, alone in its process, and the allocator's history."""

import contextlib
import gc
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from runner.measure.recorder import Result
from runner.measure.state.device import Device
from runner.schema.records import Json

_MOST_EVENTS = 100_000  # of the history
_GENERAL_POOL = (0, 0)  # not a CUDA graph's


def reset(device: Device) -> None:
    """Release free memory and let peaks count from here on."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory becomes what it is now


def peaks(device: Device, who: str, note: str = "") -> list[Result]:
    """Return the peaks since `reset` of `who`, eager or compiled: on CUDA what the allocator gave out and
    held, and what it holds for CUDA graphs at the end; on a CPU the resident memory."""
    facts = {"note": note} if note else {}
    if device.type == "cpu":
        resident = high_water_bytes(Path("/proc/self/status").read_text())
        name = "peak_rss_bytes" if who == "compiled" else "eager_peak_rss_bytes"
        return [Result(name, [float(resident)], "VmHWM after clearing it", facts=facts)]
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    results = [
        Result(f"{who}_peak_memory_bytes", [float(allocated)], "allocator, peak allocated", facts=facts),
        Result(f"{who}_peak_reserved_bytes", [float(reserved)], "allocator, peak reserved"),
    ]
    if who == "compiled":
        private = private_pool_bytes(torch.cuda.memory_snapshot())
        results.append(Result("private_pool_bytes", [float(private)], "allocator's snapshot"))
    return results


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


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Record what the CUDA allocator does."""
    torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def snapshot() -> bytes:
    """Return the recorded history as a pickle for https://pytorch.org/memory_viz."""
    return pickle.dumps(torch.cuda.memory._snapshot())
