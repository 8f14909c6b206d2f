"""`python -m runner env`: build an interpreter with packages of its own, which `attach` then offers."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from runner.host.attach import built_folder, data_folder
from runner.schema.suite import BadRequest
from runner.suites import ENVIRONMENTS
from runner.system import interpreters
from runner.system.interpreters import Interpreter

_UNPACKED = 3  # times the size of the packages, at most
_NO_NETWORK = re.compile(
    r"error sending request|failed to (fetch|download)|dns|connection|timed out", re.IGNORECASE
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help=f"{', '.join(ENVIRONMENTS)}, or your own with the packages after it")
    add("packages", nargs="*", metavar="SPEC", help="packages as pip takes them, such as torch==2.9.0")
    add("--data", type=Path, help="the data folder of `attach`; ~/.local/share/compiler-hud")
    add("--dry-run", action="store_true", help="say what would be installed, and how large it is")


def main(options: argparse.Namespace) -> int:
    """Say what will be downloaded, build the interpreter and try it; return 0. Raise BadRequest."""
    packages = options.packages or ENVIRONMENTS.get(options.name, ())
    if not packages or not re.fullmatch(r"[\w-]{1,40}", options.name, re.ASCII):
        raise BadRequest(f"env {options.name}: a name with packages, or one of {', '.join(ENVIRONMENTS)}")
    folder = built_folder(data_folder(options.data)) / options.name
    if folder.exists():
        raise BadRequest(f"{folder} is there already: remove it to build it anew")
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch, "pylock.toml")
        wanted = Path(scratch, "wanted.txt")
        wanted.write_text("\n".join(packages))
        _uv("pip", "compile", wanted, "--python", sys.executable, "--format", "pylock.toml", "-o", lock)
        size_bytes, number = size_of(lock.read_text())
        print(f"{folder}: {number} packages, {size_bytes / 1e9:.1f} GB to download", flush=True)
        if options.dry_run:
            return 0
        folder.parent.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder.parent).free
        if free_bytes < _UNPACKED * size_bytes:
            raise BadRequest(f"{folder.parent} has {free_bytes / 1e9:.1f} GB free, which may be too little")
        python = folder / "bin" / "python"
        try:
            _uv("venv", folder, "--python", sys.executable)
            _uv("pip", "sync", lock, "--python", python)
            torch = interpreters.torch_facts("cpu", Interpreter(str(python)))["torch"]
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, RuntimeError):
                raise BadRequest(f"its torch does not start: {error}") from error
            raise
    print(f"torch {torch}. `attach` offers it as {options.name} from its next start; here:")
    print(f"python -m runner run … --python {options.name}={python}")
    return 0


def size_of(lock: str) -> tuple[int, int]:
    """Return the bytes to download for a pylock.toml, at most, and the number of its packages."""
    entries = lock.split("[[packages]]")[1:]
    sizes = [
        [int(size) for size in re.findall(r"\bsize = (\d+)", entry.partition("wheels = ")[2] or entry)]
        for entry in entries
    ]
    return sum(max(of_one, default=0) for of_one in sizes), len(entries)


def _uv(*arguments: str | Path) -> None:
    """Run uv. Raise BadRequest if it is missing or fails, in words where no package index answers."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if not uv:
        raise BadRequest("uv is not installed: python -m pip install uv")
    done = subprocess.run([uv, "--quiet", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        if _NO_NETWORK.search(done.stderr):
            raise BadRequest(f"no package index answers, so that nothing was built: {lines[-1]}")
        raise BadRequest(f"uv: {' '.join(lines)[:500]}")
