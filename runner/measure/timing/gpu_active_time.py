"""GPU active time of a step: the union of its kernels' and copies' intervals, from torch's profiler."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from runner.measure.timing.call_time import Call
from runner.schema.records import Json

CLOCK = "profiler, union of kernels and copies"
STEPS = 5
_ACTIVE = ("kernel", "gpu_memcpy", "gpu_memset")
_BOUNDARY = "cudaDeviceSynchronize"

Interval = tuple[float, float]  # begin and end, µs


@dataclass(frozen=True)
class GpuActiveTime:
    steps_ms: list[float]  # a sample for each step, or their mean if the trace does not separate them
    kernels_ms: dict[str, float]  # name → time in one step
    launches: float  # kernels and copies in one step


def profile(
    call: Call, *, before_call: Callable[[], None], details: bool = False, steps: int = STEPS
) -> dict[str, Json]:
    """Return the chrome trace of `steps` steps, each between two synchronisations, after a warm-up step."""
    activities = [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    if details or not activities:
        activities.append(torch.profiler.ProfilerActivity.CPU)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1)
    with torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        record_shapes=details,
        profile_memory=details,
        with_stack=details,
    ) as profiler:
        for _ in range(1 + steps):
            before_call()
            _synchronize()
            call()
            _synchronize()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_bytes())


def compressed(trace: dict[str, Json]) -> bytes:
    return gzip.compress(json.dumps(trace).encode(), compresslevel=6)


def active_time(trace: dict[str, Json], steps: int = STEPS) -> GpuActiveTime:
    """Read a chrome trace of `steps` steps. Raise ValueError if it has no kernel."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    work = [event for event in events if str(event.get("cat", "")).lower() in _ACTIVE]
    if not work:
        raise ValueError("the profiler saw no kernel")
    intervals = [(float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in work]
    ends = sorted(
        float(event["ts"]) + float(event["dur"]) for event in events if event.get("name") == _BOUNDARY
    )
    kernels: dict[str, float] = {}
    for event in work:
        kernels[str(event["name"])] = kernels.get(str(event["name"]), 0.0) + float(event["dur"])
    return GpuActiveTime(
        steps_ms=[time_us / 1e3 for time_us in active_by_step(intervals, ends, steps)],
        kernels_ms={name: time_us / steps / 1e3 for name, time_us in kernels.items()},
        launches=len(work) / steps,
    )


def union(intervals: Iterable[Interval]) -> float:
    """Return the length that the intervals cover together."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def active_by_step(intervals: Sequence[Interval], ends: Sequence[float], steps: int) -> list[float]:
    """Return the union of the intervals of each step, in their unit.

    A step lies between two ends of synchronisations. If that gives another number of steps than there were,
    the mean is the only sample.
    """
    groups: list[list[Interval]] = []
    rest = sorted(intervals)
    for end in ends:
        group = [interval for interval in rest if interval[1] <= end]
        if group:
            groups.append(group)
            rest = rest[len(group) :]
    if len(groups) == steps and not rest:
        return [union(group) for group in groups]
    return [union(intervals) / steps]


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
