"""The environment of an interpreter, read without importing torch, for a task that died before it reported
it. `python -m runner.system.environment DEVICE` prints it as JSON, in any Python that can start.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Mapping

from runner.schema.records import Environment
from runner.system import machine
from runner.system.package_versions import PACKAGES, torch_says, version

_ASKED_S = 20


def environment(device: str) -> Environment:
    """Return the facts of `measure/state/environment.py` without torch; a GPU's memory is missing."""
    torch = torch_says()
    gpu = _gpu() if device == "cuda" else None
    return dataclasses.replace(
        of_machine(),
        torch=torch.get("__version__", ""),
        torch_git=torch.get("git_version", ""),
        cuda=torch.get("cuda", "") if device == "cuda" else "",
        driver=gpu.driver if gpu else "",
        gpu=gpu.name if gpu else "",
        gpu_uuid=gpu.uuid if gpu else "",
        gpu_memory_bytes=gpu.memory_bytes if gpu else 0,
    )


def of_machine() -> Environment:
    """Return the facts that need neither torch nor a GPU."""
    return Environment(
        triton=version("triton"),
        python=platform.python_version(),
        cpu=machine.cpu_name(),
        cpu_count=machine.usable_cpus(),
        compiler=machine.cpp_compiler(),
        os=machine.operating_system(),
        packages={name: found for name in PACKAGES if (found := version(name))},
        variables=machine.changing_variables(),
    )


def asked(device: str, python: str, variables: Mapping[str, str]) -> Environment:
    """Return the environment of another interpreter; if it does not answer, only the facts of the machine."""
    try:
        module = "runner.system.environment"
        return Environment(
            **machine.asked(module, device, python=python, variables=variables, limit_s=_ASKED_S)
        )
    except (RuntimeError, ValueError, IndexError, TypeError):
        here = environment(device)
        return dataclasses.replace(here, torch="", torch_git="", triton="", cuda="", python="", packages={})


def _gpu() -> machine.Gpu | None:
    """Return the GPU that this process sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    gpus = machine.gpus()
    return next((gpu for gpu in gpus if seen in {gpu.uuid, str(gpu.index)}), gpus[0] if gpus else None)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dataclasses.asdict(environment(sys.argv[1]))) + "\n")
