"""Was the device disturbed while we measured? State of the GPU or of the processors, as a warning.

Is the GPU free of other processes and at its full clock? Do other processes use the processors?
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from runner.launch.report import Report
from runner.measure.state.device import Device
from runner.schema.records import NO_WARNING, MeasurementWarning
from runner.system import machine
from runner.system.processes import below_me

_FIELDS = (
    "memory.used,utilization.gpu,temperature.gpu,power.draw,clocks.sm,clocks.max.sm,"
    "clocks_event_reasons.active"
)
_BUSY_MIB = 2048  # contexts (ours too) and a driver's services stay below
_POWER_CAP = 0x4  # also set on a card at its full clock, where it did not change the results
_FULL_CLOCK = 0.99
_THROTTLED_CLOCK = 0.9  # a heavy model holds an H200 at its power cap and 94 to 98 % of this clock
# Bits of NVML's clock event reasons that cut a benchmark's speed; idle (0x1) and the like do not.
_SLOWED = {
    _POWER_CAP: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal limit (software)",
    0x40: "thermal limit (hardware)",
    0x80: "power brake",
}
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_BUSY = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, irq, softirq, steal
_OWN = slice(11, 15)  # of /proc/N/stat after the name: user and system time, its own and of ended children
_ALLOWED = 0.1  # processors: what the services of a quiet machine take
_ALLOWED_SHARE = 0.01  # of all processors: on a large machine its services take more
_ROUNDING_S = 0.1  # the kernel counts in ticks
_LEAST_S = 1.0  # processor time is counted in ticks of 10 ms


def device_state(device: Device) -> State | None:
    """Return the state of the measured device, or None if it is not known."""
    if device.type == "cpu":
        return cpu_state(device.threads)
    rows = machine.nvidia_smi(_FIELDS, gpu=device.key)
    own_bytes = torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0
    return GpuState(*rows[0], own_memory_mib=own_bytes // 2**20) if rows else None


def host_state(device: str) -> State | None:
    """Return the state of all processors where they are measured, without asking for the device: of a process
    whose stages are forked."""
    return cpu_state(machine.usable_cpus()) if device == "cpu" else None


def warning(states: Sequence[State | None]) -> MeasurementWarning:
    """Return what disturbed the measurement between these states.

    A GPU is judged by the first and the last state; processors by the last interval, which is the work, or
    by as many intervals as make a second.
    """
    gpus = [state for state in states if isinstance(state, GpuState)]
    processors = [state for state in states if isinstance(state, CpuState)]
    if len(processors) > 1:
        *earlier, last = processors
        long = [state for state in earlier if last.at_s - state.at_s >= _LEAST_S]
        return processor_warning(long[-1] if long else earlier[0], last)
    return gpu_warning(gpus[0], gpus[-1]) if gpus else NO_WARNING


def keep_gpu_states(report: Report, states: Sequence[State | None]) -> None:
    """Write the states of a GPU as an artifact; a CPU has none."""
    gpus = [asdict(state) for state in states if isinstance(state, GpuState)]
    if gpus:
        report.artifact("gpu_state", "gpu_state.json", json.dumps(gpus, indent=1))


@dataclass(frozen=True)
class GpuState:
    """Values of nvidia-smi, as `_FIELDS`: MiB, %, °C, W, MHz, a hexadecimal mask; and our own MiB."""

    memory_used: str
    utilization: str
    temperature: str
    power: str
    sm_clock: str
    max_sm_clock: str
    clock_event_reasons: str
    own_memory_mib: int = field(default=0, kw_only=True)


def gpu_warning(first: GpuState, last: GpuState) -> MeasurementWarning:
    """Return who else was on the GPU before the start, and what slows it now."""
    told = []
    used = int(first.memory_used) if first.memory_used.isdigit() else 0
    others_mib = used - first.own_memory_mib  # including their contexts
    if others_mib > _BUSY_MIB:
        told.append(f"{others_mib} MiB of GPU memory were in use before the start")
    try:
        mask = int(last.clock_event_reasons, 16)
    except ValueError:
        mask = 0
    clocks = (last.sm_clock, last.max_sm_clock)
    share = int(clocks[0]) / max(int(clocks[1]), 1) if all(map(str.isdigit, clocks)) else 0.0
    if share >= _FULL_CLOCK:
        mask &= ~_POWER_CAP
    slowed = [f"slowed by {name} ({last.sm_clock} MHz)" for bit, name in _SLOWED.items() if mask & bit]
    throttled = any(mask & bit for bit in _SLOWED if bit != _POWER_CAP or share < _THROTTLED_CLOCK)
    return MeasurementWarning("; ".join([*told, *slowed]), "throttled" if throttled else "")


@dataclass(frozen=True)
class CpuState:
    """Seconds so far: `at_s` on the clock, `busy_s` of all processors that this process may use, `own_s` of
    this process and those below it. `threads` is how many it measures with."""

    at_s: float
    busy_s: float
    own_s: float
    processors: int
    threads: int


State = GpuState | CpuState


def cpu_state(threads: int) -> CpuState | None:
    """Return the times so far; None if the kernel does not count them."""
    usable = os.sched_getaffinity(0)
    try:
        busy_s = busy_seconds(Path("/proc/stat").read_text().splitlines(), usable)
    except OSError:
        return None
    if not busy_s:
        return None
    return CpuState(time.monotonic(), busy_s, _own_seconds(), len(usable), threads)


def busy_seconds(lines: Iterable[str], processors: Iterable[int]) -> float:
    """Return the busy time of these processors from the lines of /proc/stat; stolen time counts."""
    names = {f"cpu{number}" for number in processors}
    rows = (line.split() for line in lines)
    return sum(int(row[1 + place]) for row in rows if row and row[0] in names for place in _BUSY) / _TICKS


def _own_seconds() -> float:
    ticks = 0
    for pid in (os.getpid(), *(process.pid for process in below_me())):
        with contextlib.suppress(OSError):  # it has ended
            text = Path(f"/proc/{pid}/stat").read_text()
            ticks += sum(map(int, text.rpartition(")")[2].split()[_OWN]))
    return ticks / _TICKS


def processor_warning(first: CpuState, last: CpuState) -> MeasurementWarning:
    """Return a warning if other processes took processors that we measured on."""
    seconds = last.at_s - first.at_s
    others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
    room = max(0, last.processors - last.threads)  # processors that others may use
    allowed = max(_ALLOWED, _ALLOWED_SHARE * last.processors)
    if others_s - room * seconds <= allowed * seconds + _ROUNDING_S:
        return NO_WARNING
    return MeasurementWarning(
        f"other processes kept {others_s / seconds:.1f} of {last.processors} processors busy"
        f" while {last.threads} {'thread' if last.threads == 1 else 'threads'} measured",
        "busy_cpu",
    )
