"""The accelerators of this host: which there are, and whether somebody else uses one."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runner import host, locks
from runner.catalog.arches import arch_key
from runner.processes import read_process

_SECOND_LOOK_S = 0.2


class NoSuchDevice(ValueError):
    """A device was named that this host does not have; the text says what it has."""


@dataclass(frozen=True)
class Accelerator:
    name: str  # cpu, cuda:0
    device: str  # cpu, cuda
    device_name: str
    arch: str
    uuid: str = ""

    @property
    def lock(self) -> str:
        """Name of its lock: the same for every agent of this machine."""
        return self.uuid or self.name

    @property
    def visible(self) -> str:
        """CUDA_VISIBLE_DEVICES for a process that shall see it alone."""
        return self.uuid if self.device == "cuda" else ""


def accelerators(wanted: Sequence[str]) -> list[Accelerator]:
    """Those of the given names: indices of GPUs, or "cpu". All GPUs where none is named, or else the CPU.

    Raises NoSuchDevice.
    """
    gpus = {
        str(gpu.index): Accelerator(f"cuda:{gpu.index}", "cuda", gpu.name, arch_key(gpu.name), gpu.uuid)
        for gpu in host.gpus()
    }
    cpu = Accelerator("cpu", "cpu", host.cpu_name(), arch_key(platform.machine()))
    if not wanted:
        return list(gpus.values()) or [cpu]
    there = {**gpus, "cpu": cpu}
    for name in wanted:
        if name not in there:
            what = f"GPU {name}" if name.isdecimal() else f"device {name!r}"
            raise NoSuchDevice(f"this machine has no {what}; it has: {_names(there)}")
    return [there[name] for name in dict.fromkeys(wanted)]


def _names(there: Mapping[str, Accelerator]) -> str:
    names = [f"GPU {name}" if one.device == "cuda" else name for name, one in there.items()]
    return ", ".join(names)


def unavailable_reason(accelerator: Accelerator, workers: Collection[int]) -> str:
    """Why an accelerator is not free for this agent, whose workers are given by pid; '' where it is.

    An orphan keeps it as surely as a person at a terminal does: it is never shared.
    """
    if not _in_use(accelerator, workers):
        return ""
    time.sleep(_SECOND_LOOK_S)  # between taking a lock and signing it lies a moment
    return _in_use(accelerator, workers)


def _in_use(accelerator: Accelerator, workers: Collection[int]) -> str:
    folder = locks.default_folder()
    holder = locks.holder(folder, accelerator.lock)
    if holder is None:
        return ""
    process = read_process(holder.pid)
    if process and not process.dead:
        by = f"process {holder.pid}" + (f" ({holder.what})" if holder.what else "")
        return "" if process.parent in workers else f"in use by {by}"
    pids = locks.processes_with(folder, accelerator.lock)
    left = ", ".join(map(str, pids)) or "unknown"
    return f"a benchmark that its runner left behind still holds it (process {left}); end it to go on"
