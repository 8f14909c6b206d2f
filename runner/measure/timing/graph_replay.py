"""Device time: a CUDA graph over rotating operands, replayed back to back.

A call of a 7 µs kernel takes 45 µs, so call time says nothing about the kernel; and a single set of operands
would stay in the L2 cache, which a real model's operands do not.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from runner.launch.failures import TaskFailure
from runner.measure.state.device import Device
from runner.schema.statistics import median

CLOCK = "CUDA graph replay, rotating operands"
_CACHES = 4  # the operands of one round are this many times the L2 cache
_LEAST_SETS = 4
_ROUND_MS = 1.0  # a graph is at least this long, so that the gap between two replays does not count
_MOST_NODES = 1024
_WINDOW_MS = 5.0
_LEAD_MS = 0.5  # queued before the start event, so that the host is ahead when the clock starts
_MEMORY_SHARE = 0.6
_WINDOWS = 8  # samples of each capture


@dataclass(frozen=True)
class ReplayTimes:
    """Milliseconds of one call, `_WINDOWS` samples for each capture, in order of the captures; none of eager
    code where there is none."""

    eager: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)
    sets: int = 0
    note: str = ""  # a limitation of the sets, for the reader of the result

    @property
    def speedup(self) -> float:
        return median(self.eager) / median(self.compiled)

    @property
    def facts(self) -> dict[str, int | str]:
        return {"operand_sets": self.sets, **({"note": self.note} if self.note else {})}


@dataclass(frozen=True)
class ReplayPlan:
    """`touched_bytes` of one call decide how many sets of operands rotate.

    Each capture has new operands, since where they lie in memory changes the time. `warm_ms` of replays
    raise the GPU's clocks and fill its caches.
    """

    touched_bytes: int
    captures: int = 8
    warm_ms: float = 100.0


def replay(
    eager: Callable[..., Any] | None,
    compiled: Callable[..., Any],
    operands: tuple[Any, ...],
    device: Device,
    plan: ReplayPlan,
) -> ReplayTimes:
    """Time the functions over the same rotating operands. Raise TaskFailure (oom) if too few sets fit."""
    sets, note = _sets(operands, device, plan.touched_bytes)
    times = ReplayTimes(sets=sets, note=note)
    for capture in range(plan.captures):
        device.release()
        rotation = [copy.deepcopy(operands) for _ in range(sets)]
        order = ((eager, times.eager), (compiled, times.compiled))
        for function, samples in order if capture % 2 else reversed(order):
            if function:
                samples.extend(_samples(function, rotation, plan.warm_ms))
        del rotation
    device.release()
    return times


def _sets(operands: tuple[Any, ...], device: Device, touched_bytes: int) -> tuple[int, str]:
    """Return the number of sets, and a note if they are fewer than wanted."""
    wanted = max(_LEAST_SETS, math.ceil(_CACHES * device.cache_bytes / max(1, touched_bytes)))
    wanted = min(wanted, _MOST_NODES)  # operands this small stay in the cache in a model too
    one_bytes = max(touched_bytes, _bytes_of(operands))
    sets = min(wanted, int(_MEMORY_SHARE * device.free_bytes()) // max(1, one_bytes))
    if sets < _LEAST_SETS:
        needed_gib = _LEAST_SETS * one_bytes / 2**30
        reason = f"{_LEAST_SETS} sets of operands need {needed_gib:.1f} GiB of device memory"
        raise TaskFailure("oom", "out_of_memory", reason)
    if sets < wanted:  # large operands of which little is touched
        return sets, f"{sets} of {wanted} sets of operands fit: what is touched may come from the cache"
    return sets, ""


def _bytes_of(operands: tuple[Any, ...]) -> int:
    tensors: list[Any] = []
    for operand in operands:
        tensors += operand.parameters() if isinstance(operand, torch.nn.Module) else [operand]
    return sum(part.numel() * part.element_size() for part in tensors if torch.is_tensor(part))


def _samples(function: Callable[..., Any], rotation: list[tuple[Any, ...]], warm_ms: float) -> list[float]:
    """Return milliseconds of a call, one sample for each window of at least 5 ms."""
    graph, outputs = _captured(function, rotation)
    round_ms = _window_ms(graph, 1, lead=1)
    rounds = min(math.ceil(_ROUND_MS / round_ms), _MOST_NODES // len(rotation))
    if rounds > 1:
        del graph, outputs
        graph, outputs = _captured(function, rotation * rounds)
        round_ms = _window_ms(graph, 1, lead=1)
    lead = math.ceil(_LEAD_MS / round_ms)
    _window_ms(graph, math.ceil(warm_ms / round_ms), lead=lead)
    replays = math.ceil(_WINDOW_MS / round_ms)
    calls = replays * len(outputs)
    return [_window_ms(graph, replays, lead=lead) / calls for _ in range(_WINDOWS)]


def _captured(
    function: Callable[..., Any], rotation: list[tuple[Any, ...]]
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """Return the graph and its outputs. While the outputs live, no two calls write to the same memory."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function(*rotation[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = [function(*operands) for operands in rotation]
    return graph, outputs


def _window_ms(graph: torch.cuda.CUDAGraph, replays: int, *, lead: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(lead):
        graph.replay()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
