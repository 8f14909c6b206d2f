"""Read facts about this host without torch: CPU, memory, GPUs, C++ compiler, packages, measured ceilings.

`python -m runner.system.machine DEVICE` prints the environment of its interpreter as JSON, in any Python that
can start, for a task that died before it reported it.
"""

import contextlib
import csv
import datetime
import fcntl
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from runner.schema.compilations import INDUCTOR_VARIABLE
from runner.schema.protocol import version as runner_version
from runner.schema.records import Environment
from runner.system.task_files import read_object, write_json

REPOSITORY = Path(__file__).resolve().parents[2]
_PROGRAM_S = 20  # nvidia-smi answers in 0.1 s, and after minutes where a driver is broken
DAILY_READINGS = 7  # a ceiling is the median of this many
# Variables of the environment that belong to its class (measuring rule 1).
_CHANGING = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_", "PYTORCH_", "TRITON_", "CUBLAS_", "NVIDIA_TF32_")
_CHANGING_TOO = (
    *("CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CXX", "CC"),
    INDUCTOR_VARIABLE,
)
# What belongs to that class apart from what torch itself says.
_PACKAGES = ("numpy", "transformers", "timm", "torchvision", "torchbenchmark", "torch_xla", "torchao")
_OF_TORCH = re.compile(r"^(__version__|git_version|cuda)\b[^=\n]*= '([^']+)'", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")  # a second, in /proc
_BUSY = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, irq, softirq, steal
_NOT_CHANGING = ("_DIR", "_HOME", "_PATH", "_LOGS")  # where things lie changes no result


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    uuid: str
    memory_bytes: int
    driver: str


def gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs that nvidia-smi lists and CUDA_VISIBLE_DEVICES leaves to this process, in that
    one's order; none if nvidia-smi is missing or fails."""
    rows = nvidia_smi("index,name,uuid,memory.total,driver_version")
    cards = [
        Gpu(int(index), name, uuid, int(memory) * 2**20, driver) for index, name, uuid, memory, driver in rows
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return cards
    by_name = {name: card for card in cards for name in (str(card.index), card.uuid)}
    # as CUDA reads it: up to the first unknown one
    known = takewhile(by_name.__contains__, visible.split(","))
    return [by_name[name] for name in known]


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
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cpus() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def default_threads() -> int:
    """Return OMP_NUM_THREADS (of a list, one number a level, the first), else the usable processors."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) else usable_cpus()


def busy_processors_s() -> float:
    """Return for how long the processors that this process may use have been busy; 0 where the kernel does
    not count it."""
    try:
        return busy_seconds(Path("/proc/stat").read_text().splitlines(), os.sched_getaffinity(0))
    except OSError:
        return 0.0


def busy_seconds(lines: Iterable[str], processors: Iterable[int]) -> float:
    """Return the busy time of these processors from the lines of /proc/stat; stolen time counts."""
    names = {f"cpu{number}" for number in processors}
    rows = (line.split() for line in lines)
    return sum(int(row[1 + index]) for row in rows if row and row[0] in names for index in _BUSY) / TICKS


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
    """Return the facts that a host sends to the hud; limits of GPUs are as nvidia-smi prints them."""
    limits = nvidia_smi("uuid,clocks.max.sm,clocks.max.memory,power.limit")
    limit_names = ("uuid", "max_sm_mhz", "max_memory_mhz", "power_limit_w")
    return {
        "name": platform.node(),
        "runner": runner_version(),
        "cpu": cpu_name(),
        "cpu_count": usable_cpus(),
        "memory_bytes": memory_bytes(),
        "os": operating_system(),
        "python": platform.python_version(),
        "compiler": cpp_compiler(),
        "gpus": [asdict(gpu) for gpu in gpus()],
        "gpu_limits": [dict(zip(limit_names, row, strict=True)) for row in limits],
    }


def gpu_errors() -> dict[str, int]:
    """Return the uncorrected ECC errors since the driver's start, by the UUID of cards that count them."""
    rows = nvidia_smi("uuid,ecc.errors.uncorrected.volatile.total")
    return {uuid: int(count) for uuid, count in rows if count.isdecimal()}


def changing_variables() -> dict[str, str]:
    """Return the environment variables of this process that change results."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name.startswith(_CHANGING) or name in _CHANGING_TOO) and not name.endswith(_NOT_CHANGING)
    }


def environment(device: str) -> Environment:
    """Return the environment of this interpreter on a device, found without torch."""
    torch = torch_says()
    gpu = next(iter(gpus()), None) if device == "cuda" else None
    return Environment(
        torch=torch.get("__version__", ""),
        torch_git=torch.get("git_version", ""),
        triton=version("triton"),
        cuda=torch.get("cuda", "") if device == "cuda" else "",
        driver=gpu.driver if gpu else "",
        gpu=gpu.name if gpu else "",
        gpu_uuid=gpu.uuid if gpu else "",
        gpu_memory_bytes=gpu.memory_bytes if gpu else 0,
        python=platform.python_version(),
        cpu=cpu_name(),
        cpu_count=usable_cpus(),
        compiler=cpp_compiler(),
        os=operating_system(),
        packages={name: found for name in _PACKAGES if (found := version(name))},
        variables=changing_variables(),
    )


def version(package: str) -> str:
    """Return a package's version from its metadata; '' if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def modules() -> list[str]:
    """Return which of the packages can be imported, also without metadata."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name)]


def torch_says() -> dict[str, str]:
    """Return `__version__`, `git_version` and `cuda` from torch's `version.py`: its metadata may spell the
    version otherwise."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    with contextlib.suppress(OSError):
        return dict(_OF_TORCH.findall(Path(spec.origin).with_name("version.py").read_text()))
    return {}


# Ceilings: {"version": 1, "accelerators": {UUID or CPU name: {"copy_gbps": [{"day", "value", "torch"}]}}}
_CEILINGS_VERSION = 1
_MAX_CEILINGS_BYTES = 64 * 2**10  # of the facts in a heartbeat


def ceilings_path() -> Path:
    """Return this host's file of readings: RUNNER_CEILINGS, else in the user's cache folder."""
    path = os.environ.get("RUNNER_CEILINGS")
    return Path(path) if path else cache_folder() / "ceilings.json"


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


def compile_caches(folder: Path | str) -> dict[str, str]:
    """Return the variables that put inductor's and Triton's caches into a folder."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def ceilings(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by accelerator (UUID or CPU name) and ceiling, the median of the readings and the last day.

    Benchmarks write the file: one that is larger or of another shape has none, and stops no heartbeat.
    """
    by_accelerator: dict[str, dict[str, dict[str, Any]]] = {}
    try:
        for accelerator, by_name in _load(path).items():
            for name, readings in by_name.items():
                value = float(statistics.median(reading["value"] for reading in readings))
                day = datetime.date.fromisoformat(readings[-1]["day"]).isoformat()
                if not (math.isfinite(value) and f"{accelerator}{name}".isprintable()):
                    return {}
                by_accelerator.setdefault(accelerator, {})[name] = {"value": value, "day": day}
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return {}
    return by_accelerator if len(json.dumps(by_accelerator)) <= _MAX_CEILINGS_BYTES else {}


def add_reading(path: Path, accelerator: str, ceiling: str, value: float, torch: str) -> None:
    """Store today's reading, replacing an earlier one of today; keep the six days before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stored = _load(path)
        by_name = stored.setdefault(accelerator, {})
        earlier = [reading for reading in by_name.get(ceiling, []) if reading["day"] != today()]
        by_name[ceiling] = [*earlier, {"day": today(), "value": value, "torch": torch}][-DAILY_READINGS:]
        write_json(path, {"version": _CEILINGS_VERSION, "accelerators": stored})
        path.chmod(0o640)  # the agent may have another account


def _load(path: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    try:
        stored = read_object(path)
    except (OSError, ValueError):
        return {}
    return stored["accelerators"] if stored.get("version") == _CEILINGS_VERSION else {}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(environment(sys.argv[1]))) + "\n")
