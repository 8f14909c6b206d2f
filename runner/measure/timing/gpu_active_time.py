"""GPU active time of a step: the union of its kernels' and copies' intervals, from torch's profiler."""

import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from runner.launch.report import Report
from runner.measure.state.device import Device
from runner.measure.timing.call_time import Call
from runner.schema.records import Json
from runner.schema.statistics import median

CLOCK = "profiler, union of kernels and copies"
STEPS = 5
_REST_S = 1.0
_ROUNDS = 8
_ROUNDS_S = 3.0  # no round begins later
_ACTIVE = ("kernel", "gpu_memcpy", "gpu_memset")
_BOUNDARY = "cudaDeviceSynchronize"

Interval = tuple[float, float]  # begin and end, µs


@dataclass(frozen=True)
class Work:
    """A kernel or copy in a step; `launch` is its grid and block, '' for a copy."""

    name: str
    begin_us: float
    duration_us: float
    launch: str = ""

    @property
    def interval(self) -> Interval:
        return self.begin_us, self.begin_us + self.duration_us


@dataclass(frozen=True)
class GpuActiveTime:
    steps_ms: list[float]  # a sample for each step, or their mean if the trace does not separate them
    steps: list[list[Work]]  # each in order; none if the trace does not separate them
    launches: float  # kernels and copies in one step


def at_full_clock(
    call: Call, device: Device, *, before_call: Callable[[], None]
) -> tuple[GpuActiveTime, dict[str, Json]]:
    """Return the GPU active time of a call on a rested card, and the trace of some of its steps.

    A card that has worked hard runs one or two steps of its clock lower for about a second, on an H200 0.8 %
    each, and a step takes 0.2 % more or less by where its activations lie in memory. So the card rests first,
    and rounds of steps follow with newly allocated activations each, of which the faster half counts.
    """
    device.release()
    time.sleep(_REST_S)
    ends = time.monotonic() + _ROUNDS_S
    rounds: list[tuple[GpuActiveTime, dict[str, Json]]] = []
    while not rounds or (len(rounds) < _ROUNDS and time.monotonic() < ends):
        torch.cuda.empty_cache()
        trace = profile(call, before_call=before_call)
        rounds.append((active_time(trace), trace))
    rounds.sort(key=lambda timed_round: median(timed_round[0].steps_ms))
    quiet = [timing for timing, _trace in rounds[: (len(rounds) + 1) // 2]]
    together = GpuActiveTime(
        steps_ms=[step_ms for timing in quiet for step_ms in timing.steps_ms],
        steps=[step for timing in quiet for step in timing.steps],
        launches=quiet[0].launches,
    )
    return together, rounds[0][1]


def profile(
    call: Call, *, before_call: Callable[[], None], details: bool = False, steps: int = STEPS
) -> dict[str, Json]:
    """Return the chrome trace of `steps` steps, each between two synchronisations, after a warm-up step."""
    on_cuda = torch.cuda.is_available()
    synchronize: Call = torch.cuda.synchronize if on_cuda else lambda: None
    activities = [torch.profiler.ProfilerActivity.CUDA] if on_cuda else []
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
            synchronize()
            call()
            synchronize()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_bytes())


def keep_trace(report: Report, trace: dict[str, Json] | None, suffix: str = "") -> None:
    """Keep a trace as an artifact, if there is one."""
    if trace:
        report.artifact("trace", f"trace{suffix}.json.gz", gzip.compress(json.dumps(trace).encode(), 6))


def active_time(trace: dict[str, Json], steps: int = STEPS) -> GpuActiveTime:
    """Read a chrome trace of `steps` steps. Raise ValueError if it has no kernel."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    work = [_work(event) for event in events if str(event.get("cat", "")).lower() in _ACTIVE]
    if not work:
        raise ValueError("the profiler saw no kernel")
    ends = sorted(
        float(event["ts"]) + float(event["dur"]) for event in events if event.get("name") == _BOUNDARY
    )
    of_steps = by_step(work, ends, steps)
    active_us = [union(event.interval for event in step) for step in of_steps or [work]]
    return GpuActiveTime(
        steps_ms=[time_us / 1e3 / (1 if of_steps else steps) for time_us in active_us],
        steps=of_steps,
        launches=len(work) / steps,
    )


def _work(event: dict[str, Json]) -> Work:
    about = event.get("args") or {}
    launch = f"{about['grid']} {about.get('block')}".replace(" ", "") if "grid" in about else ""
    return Work(str(event["name"]), float(event["ts"]), float(event["dur"]), launch)


def union(intervals: Iterable[Interval]) -> float:
    """Return the length that the intervals cover together."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def by_step(work: Sequence[Work], ends: Sequence[float], steps: int) -> list[list[Work]]:
    """Return what ran in each step, which lies between two ends of synchronisations; nothing if that gives
    another number of steps than there were."""
    groups: list[list[Work]] = []
    rest = sorted(work, key=lambda event: event.interval)
    for end in ends:
        group = [event for event in rest if event.interval[1] <= end]
        if group:
            groups.append(group)
            rest = rest[len(group) :]
    return groups if len(groups) == steps and not rest else []
