"""The device under measurement: threads, cache, memory, synchronisation."""

import gc
import os
import platform
from dataclasses import dataclass

import torch

from runner.launch.failures import TaskFailure
from runner.system import machine

SEED = 1337


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
    """Set the number of threads (None: `default_threads`) and the seed, and return the device.

    Raise TaskFailure (unsupported) if there is no such device.
    """
    threads = threads or default_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    if device == "cpu":
        return Device("cpu", platform.machine(), machine.cpu_name(), 0, threads)
    if not torch.cuda.is_available():
        raise TaskFailure("unsupported", "no_cuda", f"torch {torch.__version__} sees no CUDA device")
    facts = torch.cuda.get_device_properties(0)
    return Device("cuda", facts.name, f"GPU-{facts.uuid}", facts.L2_cache_size, threads)


def default_threads() -> int:
    """Return OMP_NUM_THREADS (of a list, one number a level, the first), else the usable processors."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) else machine.usable_cpus()
