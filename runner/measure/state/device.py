"""The device under measurement: threads, cache, memory, synchronisation; its environment, and its state.

The state says whether the device was disturbed while we measured: is the GPU free of other processes and at
its full clock, do other processes use the processors?

`python -m runner.measure.state.device DEVICE` prints the environment as JSON, with the suites' packages that
can be imported (`modules`) and the options of inductor that can be set (`inductor_options`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure import turns
from runner.measure.compiler.inductor_options import settable
from runner.measure.forked import ASK_NVML
from runner.schema.records import BUSY_CPU, NO_WARNING, Environment, MeasurementWarning
from runner.system import machine
from runner.system.processes import below_me

SEED = 1337
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
_OWN = slice(11, 15)  # of /proc/N/stat after the name: user and system time, its own and of ended children
_ALLOWED = 0.1  # processors: what the services of a quiet machine take
_ALLOWED_SHARE = 0.01  # of all processors: on a large machine its services take more
_ROUNDING_S = 0.1  # the kernel counts in ticks
_LEAST_S = 1.0  # processor time is counted in ticks of 10 ms


@dataclass(frozen=True)
class Device:
    """`key` identifies the accelerator in the host's ceilings: a GPU's UUID, or the processor's name."""

    type: str  # cuda or cpu
    name: str  # as in gpt-fast: torch.cuda.get_device_name(), or the machine type
    key: str
    cache_bytes: int  # L2 of a GPU; 0 on a CPU, where operands are not rotated
    threads: int

    def synchronize(self) -> None:
        if self.type == "cuda":
            torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """Return the memory available for new operands."""
        if self.type == "cuda":
            return int(torch.cuda.mem_get_info()[0])
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    def release(self) -> None:
        """Give freed blocks back, so that the next operands lie on other pages."""
        gc.collect()
        if self.type == "cuda":
            torch.cuda.empty_cache()


def prepare(device: str, threads: int | None = None) -> Device:
    """Set the number of threads (None: `machine.default_threads`) and the seed, and return the device.

    Raise TaskFailure (unsupported) if there is no such device.
    """
    threads = threads or machine.default_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    if device == "cpu":
        return Device("cpu", platform.machine(), machine.cpu_name(), 0, threads)
    if not torch.cuda.is_available():
        raise TaskFailure("unsupported", "no_cuda", f"torch {torch.__version__} sees no CUDA device")
    facts = torch.cuda.get_device_properties(0)
    return Device("cuda", facts.name, f"GPU-{facts.uuid}", facts.L2_cache_size, threads)


def environment(device: Device) -> Environment:
    """Return the facts about this process, its torch, and its device as torch names it."""
    environment = machine.environment(device.type)
    variables = {name: value for name, value in environment.variables.items() if name != ASK_NVML}
    if device.type == "cpu":
        return replace(environment, variables=variables)
    memory_bytes = torch.cuda.get_device_properties(0).total_memory
    named = {"gpu": device.name, "gpu_uuid": device.key, "gpu_memory_bytes": memory_bytes}
    return replace(environment, variables=variables, **named)


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
    in_use = []
    used = int(first.memory_used) if first.memory_used.isdigit() else 0
    others_mib = used - first.own_memory_mib  # including their contexts
    if others_mib > _BUSY_MIB:
        in_use.append(f"{others_mib} MiB of GPU memory were in use before the start")
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
    return MeasurementWarning("; ".join([*in_use, *slowed]), "throttled" if throttled else "")


@dataclass(frozen=True)
class CpuState:
    """Seconds so far: `at_s` on a clock, `busy_s` of all processors that this process may use, `own_s` of
    this process and those below it. `threads` is how many it measures with."""

    at_s: float
    busy_s: float
    own_s: float
    processors: int
    threads: int


State = GpuState | CpuState


def cpu_state(threads: int) -> CpuState | None:
    """Return the times so far, without those in which another process had its turn; None if the kernel does
    not count them."""
    busy_s = machine.busy_processors_s()
    if not busy_s:
        return None
    busy_s -= turns.waited()[1]
    return CpuState(turns.clock_s(), busy_s, _own_seconds(), machine.usable_cpus(), threads)


def _own_seconds() -> float:
    ticks = 0
    for pid in (os.getpid(), *(process.pid for process in below_me())):
        with contextlib.suppress(OSError):  # it has ended
            text = Path(f"/proc/{pid}/stat").read_text()
            ticks += sum(map(int, text.rpartition(")")[2].split()[_OWN]))
    return ticks / machine.TICKS


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
        BUSY_CPU,
    )


if __name__ == "__main__":
    facts = {"modules": machine.modules(), "inductor_options": settable()}
    sys.stdout.write(json.dumps({**asdict(environment(prepare(sys.argv[1]))), **facts}) + "\n")
