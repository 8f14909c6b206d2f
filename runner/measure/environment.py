"""Environment facts. `python -m runner.measure.environment DEVICE` prints them as JSON."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import sys

import torch

from runner import host
from runner.catalog.inductor_options import VARIABLE as INDUCTOR_OPTIONS
from runner.measure.device import Device, prepare
from runner.measure.stages import ASK_NVML
from runner.records import Environment

# What belongs to the class of an environment (measuring rule 1), apart from what torch itself says.
_PACKAGES = ("numpy", "transformers", "timm", "torchvision", "torchbenchmark", "torch_xla", "torchao")
_PREFIXES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_", "PYTORCH_", "TRITON_", "CUBLAS_", "NVIDIA_TF32_")
_NAMES = ("CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "MKL_NUM_THREADS", "CXX", "CC", INDUCTOR_OPTIONS)
_NOT_RESULTS = ("_DIR", "_HOME", "_PATH", "_LOGS")  # where things lie changes no result


def environment(device: Device) -> Environment:
    """Where this process measures."""
    gpu = next((gpu for gpu in host.gpus() if gpu.uuid == device.key), None)
    on_gpu = device.type == "cuda"
    return Environment(
        torch=torch.__version__,
        torch_git=torch.version.git_version or "",
        triton=_version("triton"),
        cuda=(torch.version.cuda or "") if on_gpu else "",
        driver=gpu.driver if gpu else "",
        gpu=device.name if on_gpu else "",
        gpu_uuid=device.key if on_gpu else "",
        gpu_memory_bytes=torch.cuda.get_device_properties(0).total_memory if on_gpu else 0,
        python=platform.python_version(),
        cpu=host.cpu_name(),
        cpu_count=host.usable_cpus(),
        compiler=host.cpp_compiler(),
        os=host.operating_system(),
        packages={name: version for name in _PACKAGES if (version := _version(name))},
        variables={"OMP_NUM_THREADS": str(device.threads), **_variables()},
    )


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name.startswith(_PREFIXES) or name in _NAMES)
        and not name.endswith(_NOT_RESULTS)
        and name != ASK_NVML
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dataclasses.asdict(environment(prepare(sys.argv[1])))) + "\n")
