"""The accelerators of this host, and why one is unavailable."""

import platform
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.schema.devices import arch_key
from runner.schema.suite import BadRequest
from runner.system import account, locks, machine
from runner.system.processes import read_process

_SECOND_LOOK_S = 0.2


@dataclass(frozen=True)
class Accelerator:
    name: str  # cpu, cuda:0
    device: str  # cpu, cuda
    device_name: str
    arch: str
    uuid: str = ""

    @property
    def lock(self) -> str:
        """Return the name of its lock: the same for every agent of this machine."""
        return self.uuid or self.name

    @property
    def visible(self) -> str:
        """Return CUDA_VISIBLE_DEVICES for a process that sees only this one."""
        return self.uuid if self.device == "cuda" else ""


def accelerators(wanted: Sequence[str]) -> list[Accelerator]:
    """Return the accelerators with these names (`cpu`, `cuda:1` or `1`; `cuda` is the first GPU); without
    names all GPUs, or the CPU if there is none.

    Raise BadRequest for a name that this host does not have.
    """
    gpus = {
        str(gpu.index): Accelerator(f"cuda:{gpu.index}", "cuda", gpu.name, arch_key(gpu.name), gpu.uuid)
        for gpu in machine.gpus()
    }
    cpu = Accelerator("cpu", "cpu", machine.cpu_name(), arch_key(platform.machine()))
    if not wanted:
        return list(gpus.values()) or [cpu]
    there = {**gpus, "cpu": cpu}
    names = ["0" if name == "cuda" else name.removeprefix("cuda:") for name in wanted]
    for name in names:
        if name not in there:
            what = f"GPU {name}" if name.isdecimal() else f"device {name!r}"
            known = ", ".join([*(f"GPU {index}" for index in gpus), "cpu"])
            raise BadRequest(f"this machine has no {what}; it has: {known}")
    return [there[name] for name in dict.fromkeys(names)]


def ceilings_of(accelerators: Iterable[Accelerator], data: Path) -> dict[str, Any]:
    """Return the readings of each accelerator of an agent, by its own benchmarks alone."""
    readings = {}
    for slot, accelerator in enumerate(accelerators):
        stored = machine.ceilings(account.ceilings(data, slot))
        key = accelerator.uuid or accelerator.device_name
        readings.update({key: stored[key]} if key in stored else {})
    return readings


def unavailable_reason(accelerator: Accelerator, workers: Collection[int]) -> str:
    """Return why an accelerator is not free for this agent, whose workers are given by pid; '' if it is.

    It is never shared, neither with a person at a terminal nor with an orphaned benchmark.
    """
    if not _holder(accelerator, workers):
        return ""
    time.sleep(_SECOND_LOOK_S)  # a lock is signed a moment after it is taken
    return _holder(accelerator, workers)


def _holder(accelerator: Accelerator, workers: Collection[int]) -> str:
    folder = locks.default_folder()
    holder = locks.holder(folder, accelerator.lock)
    if holder is None:
        return ""
    process = read_process(holder.pid)
    if process and not process.dead:
        by = f"process {holder.pid}" + (f" ({holder.what})" if holder.what else "")
        return "" if holder.pid in workers else f"in use by {by}"
    pids = locks.processes_with(folder, accelerator.lock)
    left = ", ".join(map(str, pids)) or "unknown"
    return f"a benchmark that its runner left behind still holds it (process {left}); end it to go on"
