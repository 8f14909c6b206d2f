"""Read facts about this host without torch: CPU, memory, GPUs, C++ compiler, measured ceilings."""

import contextlib
import csv
import datetime
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner.schema.compilations import INDUCTOR_VARIABLE

_ROOT = Path(__file__).resolve().parent.parent.parent
_PROGRAM_S = 20  # nvidia-smi answers in 0.1 s, and after minutes where a driver is broken
_ASKED_S = 120
_CANARY_S = 300
DAILY_READINGS = 7  # a ceiling is the median of this many
# Variables of the environment that belong to its class (measuring rule 1).
_CHANGING = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_", "PYTORCH_", "TRITON_", "CUBLAS_", "NVIDIA_TF32_")
_CHANGING_TOO = (
    *("CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CXX", "CC"),
    INDUCTOR_VARIABLE,
)
_NOT_CHANGING = ("_DIR", "_HOME", "_PATH", "_LOGS")  # where things lie changes no result


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    uuid: str
    memory_bytes: int
    driver: str


def gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs that nvidia-smi lists, none if it is missing or fails."""
    rows = nvidia_smi("index,name,uuid,memory.total,driver_version")
    return [
        Gpu(int(index), name, uuid, int(memory) * 2**20, driver) for index, name, uuid, memory, driver in rows
    ]


def gpu_limits() -> list[dict[str, Any]]:
    """Return the highest clocks (MHz) and power (W) of each GPU, as nvidia-smi prints them."""
    names = ("uuid", "max_sm_mhz", "max_memory_mhz", "power_limit_w")
    rows = nvidia_smi("uuid,clocks.max.sm,clocks.max.memory,power.limit")
    return [dict(zip(names, row, strict=True)) for row in rows]


def nvidia_smi(fields: str, *, gpu: str = "") -> list[list[str]]:
    """Return the rows of `nvidia-smi --query-gpu=FIELDS`, none if the program is missing or fails."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    printed = _output_of(command + ([f"--id={gpu}"] if gpu else []))
    rows = csv.reader(printed.splitlines(), skipinitialspace=True)
    return [row for row in rows if len(row) == fields.count(",") + 1]


def _output_of(command: list[str]) -> str:
    """Return what a program prints, '' if it is missing, fails or hangs."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout


def cpu_name() -> str:
    """Return the model of the processor, or the machine type if the system does not name it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Return the main memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cpus() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def cpp_compiler() -> str:
    """Return the first line of `--version` of inductor's C++ compiler (CXX, else g++), or ''."""
    return _output_of([os.environ.get("CXX") or "g++", "--version"]).partition("\n")[0].strip()


def operating_system() -> str:
    """Return the distribution's name and the kernel's release."""
    name = platform.system()
    with contextlib.suppress(OSError):
        name = platform.freedesktop_os_release().get("PRETTY_NAME", name)
    return f"{name}, {platform.release()}"


def facts() -> dict[str, Any]:
    """Return the facts that a host sends to the hud."""
    return {
        "name": platform.node(),
        "cpu": cpu_name(),
        "cpu_count": usable_cpus(),
        "memory_bytes": memory_bytes(),
        "os": operating_system(),
        "python": platform.python_version(),
        "compiler": cpp_compiler(),
        "gpus": [asdict(gpu) for gpu in gpus()],
        "gpu_limits": gpu_limits(),
    }


def changing_variables() -> dict[str, str]:
    """Return the environment variables of this process that change results."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name.startswith(_CHANGING) or name in _CHANGING_TOO) and not name.endswith(_NOT_CHANGING)
    }


def torch_facts(
    device: str, python: str = sys.executable, variables: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the Environment as the torch of `python` sees it on a device, and `modules`.

    Raise RuntimeError with the last line of its output if there is no torch or no such device.
    """
    return asked("runner.measure.state.environment", device, python=python, variables=variables)


def canary(device: str, python: str, variables: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the answer of an interpreter's `compile_small`, also where it gives none. Its compile caches are
    its own: inductor's default folder is named after the user, and may belong to another of this name."""
    module = "runner.measure.compiler.compiled"
    try:
        with tempfile.TemporaryDirectory(prefix="compiler-hud-", ignore_cleanup_errors=True) as folder:
            own = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
            return asked(module, device, python=python, variables={**own, **variables}, limit_s=_CANARY_S)
    except (OSError, RuntimeError, ValueError, IndexError) as error:
        return {"error": str(error)[:500]}


def asked(
    module: str, *arguments: str, python: str, variables: Mapping[str, str], limit_s: int = _ASKED_S
) -> dict[str, Any]:
    """Run a module of ours with `python` and these variables; return the JSON object it prints last.

    Raise RuntimeError with the last line of its output if it fails.
    """
    answer = run_module(module, *arguments, python=python, variables=variables, limit_s=limit_s)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{python}: {lines[-1]}")
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def run_module(
    module: str, *arguments: str, python: str, variables: Mapping[str, str], limit_s: int
) -> subprocess.CompletedProcess[str]:
    """Run a module of ours with `python` and these variables.

    Raise RuntimeError if it does not start or runs longer than `limit_s`.
    """
    own = os.environ.get("PYTHONPATH") if python == sys.executable else None  # set for this interpreter only
    paths = [str(_ROOT), *filter(None, [variables.get("PYTHONPATH", own)])]
    try:
        return subprocess.run(
            [python, "-m", module, *arguments],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"{python} could not be asked for its torch: {error}") from error


# Ceilings: {"version": 1, "accelerators": {UUID or CPU name: {"copy_gbps": [{"day", "value", "torch"}]}}}
_CEILINGS_VERSION = 1


def ceilings_path() -> Path:
    """Return this host's file of readings: RUNNER_CEILINGS, else in the user's cache folder."""
    given = os.environ.get("RUNNER_CEILINGS")
    return Path(given) if given else cache_folder() / "ceilings.json"


def cache_folder() -> Path:
    """Return the folder, created if missing, for compiled kernels and readings, which may be lost. It is in
    the temporary directory if the user has no writable home."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "compiler-hud"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"compiler-hud-cache-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def readings(path: Path, accelerator: str, ceiling: str) -> list[dict[str, Any]]:
    """Return the last seven daily readings of one ceiling, oldest first."""
    return _load(path).get(accelerator, {}).get(ceiling, [])


def ceiling_median(path: Path, accelerator: str, ceiling: str) -> float | None:
    """Return the median of the stored daily readings, or None without any."""
    values = [reading["value"] for reading in readings(path, accelerator, ceiling)]
    return float(statistics.median(values)) if values else None


def ceilings(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by accelerator (UUID or CPU name) and ceiling, the median of the readings and the last day."""
    return {
        accelerator: {
            name: {"value": ceiling_median(path, accelerator, name), "day": found[-1]["day"]}
            for name, found in by_name.items()
            if found
        }
        for accelerator, by_name in _load(path).items()
    }


def add_reading(path: Path, accelerator: str, ceiling: str, value: float, torch: str) -> None:
    """Store today's reading, replacing an earlier one of today; keep the six days before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stored = _load(path)
        by_name = stored.setdefault(accelerator, {})
        earlier = [reading for reading in by_name.get(ceiling, []) if reading["day"] != today()]
        by_name[ceiling] = [*earlier, {"day": today(), "value": value, "torch": torch}][-DAILY_READINGS:]
        fresh = path.with_suffix(f".{os.getpid()}")
        content = {"version": _CEILINGS_VERSION, "accelerators": stored}
        fresh.write_text(json.dumps(content, indent=1) + "\n")
        fresh.replace(path)


def _load(path: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    known = isinstance(stored, dict) and stored.get("version") == _CEILINGS_VERSION
    return stored["accelerators"] if known else {}
