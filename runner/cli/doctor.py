"""`python -m runner doctor`: can this machine run the suites, and what are its measured ceilings?"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.schema.compilations import blind_text
from runner.system import account, interpreters, machine, sandbox
from runner.system.interpreters import Interpreter

_NO_COMPILER = "none: inductor cannot compile for the CPU; install g++ or name a compiler in CXX"
_CEILINGS = {
    "copy_gbps": ("copy", "GB/s"),
    "read_gbps": ("read", "GB/s"),
    "matmul_bfloat16_tflops": ("bfloat16 product", "TFLOP/s"),
}


_Finding = tuple[bool, str, str]  # False if a suite cannot run because of it; name and text of a line


def main(_options: argparse.Namespace) -> int:
    """Print a line for each finding; return 1 if a suite cannot run because of one."""
    findings = list(_examine(Interpreter(sys.executable)))
    for is_ok, name, text in findings:
        print(f"{'ok ' if is_ok else 'BAD'}  {name:<18} {text}")
    return 0 if all(is_ok for is_ok, _name, _text in findings) else 1


def _examine(python: Interpreter) -> Iterator[_Finding]:
    compiler, gpus = machine.cpp_compiler(), machine.gpus()
    yield True, "python", python.path
    yield from _separation(python)
    memory = _gib(machine.memory_bytes())
    yield True, "cpu", f"{machine.cpu_name()}, {machine.usable_cpus()} usable, {memory}"
    yield bool(compiler), "C++", compiler or _NO_COMPILER
    for gpu in gpus:
        yield True, "gpu", f"cuda:{gpu.index} {gpu.name}, {_gib(gpu.memory_bytes)}, driver {gpu.driver}"
    if not gpus:
        yield True, "gpu", "none that nvidia-smi lists"
    for device in ["cuda", "cpu"] if gpus else ["cpu"]:
        try:
            facts = interpreters.torch_facts(device, python)
        except RuntimeError as error:
            yield False, f"torch on {device}", str(error)
            continue
        version = f"{facts['torch']} ({facts['torch_git'][:12]})"
        version += f", triton {facts['triton']}" if facts["triton"] else ""
        version += f", CUDA {facts['cuda']}" if facts["cuda"] else ""
        yield True, f"torch on {device}", version
        yield from _inductor(python, device)
        measured = machine.ceilings(machine.ceilings_path()).get(facts["gpu_uuid"] or facts["cpu"], {})
        for name, (title, unit) in _CEILINGS.items():
            if known := measured.get(name):
                text = f"{title} {known['value']:.4g} {unit}, median of daily readings, last {known['day']}"
                yield True, f"ceiling on {device}", text
        if not measured:
            run = f"python -m runner run ceilings --device {device}"
            yield True, f"ceiling on {device}", f"not read yet: {run}"


def _separation(python: Interpreter) -> Iterator[_Finding]:
    """Say what benchmarks of `attach` could reach, if this user started it now."""
    with tempfile.TemporaryDirectory(prefix="compiler-hud-") as folder:
        problem = account.prepare(Path(folder), [python.path])
        lacking = sandbox.problem_of(Path(folder), [python.path])
    separated = "benchmarks of attach get a user id of their own: they reach neither the host's key nor Redis"
    shared = (
        "benchmarks of attach run as this user, so they can read the host's key and write to its Redis: "
        f"{problem}. Root can separate them, with a Python and a --data in folders that all may enter"
    )
    yield True, "accounts", shared if problem else separated
    possible = f"attach --sandbox cannot be used: {lacking}" if lacking else "attach --sandbox can be used"
    yield True, "sandbox", possible


def _inductor(python: Interpreter, device: str) -> Iterator[_Finding]:
    """Compile one small function."""
    answer = interpreters.canary(device, python)
    if "error" in answer:
        yield False, f"inductor on {device}", f"cannot compile: {answer['error']}"
        return
    noted = ", ".join(answer["noted"])
    if not {"choices"} & {*answer["noted"], *answer["blind"]}:
        noted += " (choices: not applicable on a CPU)"
    yield True, f"inductor on {device}", f"compiles; a small kernel took {answer['compiled_s']:.1f} s"
    yield True, f"notes on {device}", "; ".join(filter(None, (noted, blind_text(answer["blind"]))))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.0f} GiB"
