"""The environment of an interpreter, read without importing torch, for a task that died before it reported
it. `python -m runner.system.environment DEVICE` prints it as JSON, in any Python that can start.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.schema.records import Environment, runner_facts
from runner.system import machine

_ASKED_S = 20
# What belongs to the class of an environment (measuring rule 1), apart from what torch itself says.
_PACKAGES = ("numpy", "transformers", "timm", "torchvision", "torchbenchmark", "torch_xla", "torchao")
_DIGITS = 9  # of a commit
_OF_TORCH = re.compile(r"^(__version__|git_version|cuda)\b[^=\n]*= '([^']+)'", re.MULTILINE)


def environment(device: str) -> Environment:
    """Return the facts of `measure/state/environment.py` without torch."""
    torch = torch_says()
    gpus = machine.gpus() if device == "cuda" else []
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]  # by this process
    gpu = next((gpu for gpu in gpus if seen in {gpu.uuid, str(gpu.index)}), gpus[0] if gpus else None)
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
        packages={name: found for name in _PACKAGES if (found := version(name))},
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


def version(package: str) -> str:
    """Return a package's version from its metadata; '' if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def modules() -> list[str]:
    """Return which of the packages can be imported, also without metadata."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name)]


def versions_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions in a record (v3) by package, torch's with its commit."""
    found = {"python": runner_facts(record).get("python", "")}
    for name, said in (record.get("dependencies") or {}).items():
        found[name] = f"{said.get('version', '')} {said.get('sha', '')[:_DIGITS]}".strip()
    return {name: text for name, text in found.items() if text}


def torch_says() -> dict[str, str]:
    """Return `__version__`, `git_version` and `cuda` from torch's `version.py`: its metadata may spell the
    version otherwise."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return {}
    with contextlib.suppress(OSError):
        return dict(_OF_TORCH.findall(Path(found.origin).with_name("version.py").read_text()))
    return {}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dataclasses.asdict(environment(sys.argv[1]))) + "\n")
