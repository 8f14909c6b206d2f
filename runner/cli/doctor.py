"""Can this machine run the suites, and how well does it measure?"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.system import machine

_ROOT = Path(__file__).resolve().parent.parent.parent
_COMPILE_S = 300
_CEILINGS = {"copy_gbps": "copy", "read_gbps": "read", "matmul_bfloat16_tflops": "bfloat16 product"}
_UNITS = {"copy_gbps": "GB/s", "read_gbps": "GB/s", "matmul_bfloat16_tflops": "TFLOP/s"}


@dataclass(frozen=True)
class Finding:
    """`well` is False for what keeps a suite from running."""

    what: str
    text: str
    well: bool = True


def examine(python: str = sys.executable) -> list[Finding]:
    """Findings in the order in which a person would ask."""
    findings = [
        Finding("python", python),
        Finding(
            "cpu", f"{machine.cpu_name()}, {machine.usable_cpus()} usable, {_gib(machine.memory_bytes())}"
        ),
        _compiler(),
    ]
    gpus = machine.gpus()
    findings += [
        Finding("gpu", f"cuda:{gpu.index} {gpu.name}, {_gib(gpu.memory_bytes)}, driver {gpu.driver}")
        for gpu in gpus
    ] or [Finding("gpu", "none that nvidia-smi lists")]
    for device in ["cuda", "cpu"] if gpus else ["cpu"]:
        findings += _torch(python, device)
    return findings


def _compiler() -> Finding:
    found = machine.cpp_compiler()
    missing = "none: inductor cannot compile for the CPU; install g++ or name a compiler in CXX"
    return Finding("C++", found or missing, bool(found))


def _torch(python: str, device: str) -> list[Finding]:
    try:
        facts = machine.torch_facts(device, python)
    except RuntimeError as error:
        return [Finding(f"torch on {device}", str(error), False)]
    version = f"{facts['torch']} ({facts['torch_git'][:12]})"
    if facts["triton"]:
        version += f", triton {facts['triton']}"
    if facts["cuda"]:
        version += f", CUDA {facts['cuda']}"
    found = [Finding(f"torch on {device}", version), _inductor(python, device)]
    return found + _ceilings(facts, device)


def _inductor(python: str, device: str) -> Finding:
    """Compiles one small function; only that tells whether the whole chain of tools is there."""
    try:
        answer = subprocess.run(
            [python, "-m", "runner.measure.compiler.compiled", device],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(f"inductor on {device}", str(error), False)
    said = answer.stdout.strip().splitlines()
    return Finding(f"inductor on {device}", said[-1] if said else "said nothing", answer.returncode == 0)


def _ceilings(facts: dict[str, Any], device: str) -> list[Finding]:
    key = facts["gpu_uuid"] or facts["cpu"]
    found = []
    for name, title in _CEILINGS.items():
        readings = machine.readings(machine.ceilings_path(), key, name)
        if readings:
            middle = machine.ceiling_median(machine.ceilings_path(), key, name)
            text = f"{title} {middle:.4g} {_UNITS[name]}, median of {len(readings)} daily readings"
            found.append(Finding(f"ceiling on {device}", f"{text}, last {readings[-1]['day']}"))
    advice = f"not read yet: python -m runner run ceilings --device {device}"
    return found or [Finding(f"ceiling on {device}", advice)]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.0f} GiB"
