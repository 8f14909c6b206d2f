"""Check whether this machine can run the suites, and show its measured ceilings."""

import sys
from dataclasses import dataclass

from runner.schema.compilations import blind_text
from runner.system import interpreters, machine
from runner.system.interpreters import Interpreter

_NO_COMPILER = "none: inductor cannot compile for the CPU; install g++ or name a compiler in CXX"
_CEILINGS = {
    "copy_gbps": ("copy", "GB/s"),
    "read_gbps": ("read", "GB/s"),
    "matmul_bfloat16_tflops": ("bfloat16 product", "TFLOP/s"),
}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `ok` is False if a suite cannot run because of it."""

    name: str
    text: str
    ok: bool = True


def examine(python: str = sys.executable) -> list[Finding]:
    compiler = machine.cpp_compiler()
    findings = [
        Finding("python", python),
        Finding(
            "cpu", f"{machine.cpu_name()}, {machine.usable_cpus()} usable, {_gib(machine.memory_bytes())}"
        ),
        Finding("C++", compiler or _NO_COMPILER, bool(compiler)),
    ]
    gpus = machine.gpus()
    findings += [
        Finding("gpu", f"cuda:{gpu.index} {gpu.name}, {_gib(gpu.memory_bytes)}, driver {gpu.driver}")
        for gpu in gpus
    ] or [Finding("gpu", "none that nvidia-smi lists")]
    for device in ["cuda", "cpu"] if gpus else ["cpu"]:
        try:
            facts = interpreters.torch_facts(device, Interpreter(python))
        except RuntimeError as error:
            findings.append(Finding(f"torch on {device}", str(error), False))
            continue
        version = f"{facts['torch']} ({facts['torch_git'][:12]})"
        version += f", triton {facts['triton']}" if facts["triton"] else ""
        version += f", CUDA {facts['cuda']}" if facts["cuda"] else ""
        findings += [Finding(f"torch on {device}", version), *_inductor(python, device)]
        findings += _ceilings(facts["gpu_uuid"] or facts["cpu"], device)
    return findings


def _inductor(python: str, device: str) -> list[Finding]:
    """Compile one small function."""
    answer = interpreters.canary(device, Interpreter(python))
    if "error" in answer:
        return [Finding(f"inductor on {device}", f"cannot compile: {answer['error']}", False)]
    noted = ", ".join(answer["noted"])
    if not {"choices"} & {*answer["noted"], *answer["blind"]}:
        noted += " (choices: not applicable on a CPU)"
    return [
        Finding(f"inductor on {device}", f"compiles; a small kernel took {answer['compiled_s']:.1f} s"),
        Finding(f"notes on {device}", "; ".join(filter(None, (noted, blind_text(answer["blind"]))))),
    ]


def _ceilings(key: str, device: str) -> list[Finding]:
    read = machine.ceilings(machine.ceilings_path()).get(key, {})
    texts = [
        f"{title} {read[name]['value']:.4g} {unit}, median of daily readings, last {read[name]['day']}"
        for name, (title, unit) in _CEILINGS.items()
        if name in read
    ] or [f"not read yet: python -m runner run ceilings --device {device}"]
    return [Finding(f"ceiling on {device}", text) for text in texts]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.0f} GiB"
