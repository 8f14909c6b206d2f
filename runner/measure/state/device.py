"""The device under measurement: threads, cache, memory, synchronisation; and the environment.

`python -m runner.measure.state.device DEVICE` prints the environment as JSON, with the suites' packages that
can be imported (`modules`) and the options of inductor that can be set (`inductor_options`).
"""

import gc
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, replace

import torch

from runner.launch.failures import TaskFailure
from runner.measure.compiler.inductor_options import settable
from runner.measure.forked import ASK_NVML
from runner.schema.records import Environment
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


def environment(device: Device) -> Environment:
    """Return the facts about this process, its torch and its device."""
    gpu = next((gpu for gpu in machine.gpus() if gpu.uuid == device.key), None)
    on_gpu = device.type == "cuda"
    return replace(
        machine.of_machine(),
        torch=torch.__version__,
        torch_git=torch.version.git_version or "",
        cuda=(torch.version.cuda or "") if on_gpu else "",
        driver=gpu.driver if gpu else "",
        gpu=device.name if on_gpu else "",
        gpu_uuid=device.key if on_gpu else "",
        gpu_memory_bytes=torch.cuda.get_device_properties(0).total_memory if on_gpu else 0,
        variables={name: value for name, value in machine.changing_variables().items() if name != ASK_NVML},
    )


if __name__ == "__main__":
    facts = {"modules": machine.modules(), "inductor_options": settable()}
    sys.stdout.write(json.dumps({**asdict(environment(prepare(sys.argv[1]))), **facts}) + "\n")
