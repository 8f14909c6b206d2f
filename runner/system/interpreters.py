"""The Pythons of a machine that have torch: what they answer, and whether their packages change.

`python -m runner.system.interpreters` prints the fingerprint of its interpreter as JSON, without importing
torch, with the folders of its packages. A look reads size and time of the RECORD files there, and asks the
interpreter again only if one has changed.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.schema.protocol import CHANGED_INTERPRETER, Fingerprint
from runner.schema.records import STATUSES, Environment
from runner.schema.suite import BadRequest
from runner.schema.tasks import TaskOutcome
from runner.system import machine
from runner.system.task_files import write_json

DEFAULT = "default"  # name of the one that runs the runner itself
_NEXT_VARIABLE = re.compile(r",(?=[A-Za-z_]\w*=)")
_DIGITS = 16
_TORCH_S = 120
_CANARY_S = 300
_WITHOUT_TORCH_S = 20
_SILENT_S = 60.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Interpreter:
    """A Python that has torch, and what its environment has besides ours."""

    path: str
    environment: Mapping[str, str] = field(default_factory=dict)


def interpreter_of(text: str) -> tuple[str, Interpreter]:
    """Read ``NAME=PATH[,ENV=VALUE…]``, NAME first; a PATH without a slash is looked for where a shell looks.

    A comma that no ``ENV=`` follows is part of the value, such as one of JSON. Raise BadRequest.
    """
    first, *variables = _NEXT_VARIABLE.split(text)
    name, separator, path = first.partition("=")
    program = shutil.which(path)
    if not separator or not name or not program:
        raise BadRequest(f"--python {text}: it is NAME=PATH of a program here, then ENV=VALUE after commas")
    pairs = [variable.partition("=") for variable in variables]
    absolute = str(Path(program).absolute())  # a task's process starts in a folder of its own
    return name, Interpreter(absolute, {key: value for key, _equals, value in pairs})


def interpreter_or_own(text: str) -> tuple[str, Interpreter]:
    """Return the one that a command names, by default the one that runs the runner. Raise BadRequest."""
    return interpreter_of(text) if text else (DEFAULT, Interpreter(sys.executable))


def answer_of(python: Interpreter, module: str, *arguments: str, limit_s: int) -> dict[str, Any]:
    """Run a module of ours with an interpreter; return the JSON object it prints last.

    Raise RuntimeError if it does not start, fails (with the last line of its output), runs longer than
    `limit_s` or prints none.
    """
    # ours is set for the interpreter of the runner only
    ours = os.environ.get("PYTHONPATH") if python.path == sys.executable else None
    paths = [str(machine.REPOSITORY), *filter(None, [python.environment.get("PYTHONPATH", ours)])]
    try:
        answer = subprocess.run(
            [python.path, "-m", module, *arguments],
            env={**os.environ, **python.environment, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=True,
        )
        printed: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{python.path}: {lines[-1]}") from error
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise RuntimeError(f"{python.path} could not be asked for its torch: {error}") from error
    return printed


def torch_facts(device: str, python: Interpreter) -> dict[str, Any]:
    """Return the Environment as an interpreter's torch sees it on a device, the suites' packages that can be
    imported (`modules`) and the options of inductor. Raise RuntimeError if there is no torch or no such
    device."""
    return answer_of(python, "runner.measure.state.device", device, limit_s=_TORCH_S)


def canary(device: str, python: Interpreter) -> dict[str, Any]:
    """Return the answer of an interpreter's `compile_small`, also where it gives none. Its compile caches are
    its own: inductor's default folder is named after the user, and may belong to another of this name."""
    try:
        with tempfile.TemporaryDirectory(prefix="compiler-hud-", ignore_cleanup_errors=True) as folder:
            python = replace(python, environment={**machine.compile_caches(folder), **python.environment})
            return answer_of(python, "runner.measure.compiler.compiled", device, limit_s=_CANARY_S)
    except (OSError, RuntimeError) as error:
        return {"error": str(error)[:500]}


def environment_of(device: str, python: Interpreter) -> Environment:
    """Return the environment of an interpreter, read without torch; if it does not answer, only the facts of
    the machine."""
    try:
        return Environment(**answer_of(python, "runner.system.machine", device, limit_s=_WITHOUT_TORCH_S))
    except RuntimeError:
        here = machine.environment(device)
        return replace(here, torch="", torch_git="", triton="", cuda="", python="", packages={})


class Fingerprints:
    """The fingerprints of a host's interpreters, in a file that its agent and its workers share."""

    def __init__(self, path: Path, pythons: Mapping[str, Interpreter]) -> None:
        self._path = path
        self._pythons = pythons
        self._silent: dict[str, float] = {}  # when one that did not answer is asked again

    def look(self) -> dict[str, Fingerprint]:
        """Return the fingerprints by name, without an interpreter that does not answer."""
        known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(self._path.read_bytes())
        fingerprints = {}
        for name, python in self._pythons.items():
            key = json.dumps([python.path, dict(python.environment)])
            if key not in known or known[key]["stamp"] != stamp(known[key]["folders"]):
                if time.monotonic() < self._silent.get(key, 0.0):
                    continue
                try:
                    known[key] = answer_of(python, "runner.system.interpreters", limit_s=_WITHOUT_TORCH_S)
                except RuntimeError as error:
                    logger.warning("interpreter %s has no fingerprint: %s", name, error)
                    self._silent[key] = time.monotonic() + _SILENT_S
                    continue
                with contextlib.suppress(OSError):  # a full disk: the next look asks again
                    write_json(self._path, known)
            fingerprints[name] = Fingerprint.from_json(known[key])
        return fingerprints

    def checked(
        self, outcome: TaskOutcome, names: Iterable[str], begun: Mapping[str, Fingerprint], place: str
    ) -> TaskOutcome:
        """Return the outcome of a process that ended by itself: `failed` if one of the interpreters of its
        task is not the one that has `begun`."""
        now = self.look() if outcome.status in STATUSES else begun
        for name in names:
            if name in begun and now.get(name) != begun[name]:
                change = f"{begun[name]} → {now.get(name, 'it does not answer')}"
                reason = f"interpreter {name} of {place} changed while the task ran: {change}"
                return replace(outcome, status="failed", code=CHANGED_INTERPRETER, reason=reason)
        return outcome


def stamp(folders: Iterable[str]) -> str:
    """Return a digest of size and time of each RECORD file, and of torch's version: a torch that was built
    again in place has the same RECORD."""
    parts = []
    for folder in folders:
        for file in (*_records(folder), Path(folder, "torch", "version.py")):
            with contextlib.suppress(OSError):
                facts = file.stat()
                parts.append((str(file), facts.st_size, facts.st_mtime_ns))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_DIGITS]


def _records(folder: str) -> list[Path]:
    """Return the RECORD files of a folder with packages, by name."""
    try:
        return sorted(path / "RECORD" for path in Path(folder).iterdir() if path.suffix == ".dist-info")
    except OSError:  # no folder, such as a zip file
        return []


def _own() -> dict[str, Any]:
    """Return the fingerprint of this interpreter, and its folders as they were before they were read."""
    folders = [path for path in sys.path if Path(path).is_dir()]
    before, torch, digest = stamp(folders), machine.torch_says(), hashlib.sha256()
    for file in (file for folder in folders for file in _records(folder)):
        with contextlib.suppress(OSError):
            digest.update(f"{file.parent.name}\n".encode() + file.read_bytes())
    names = torch.get("__version__", ""), torch.get("git_version", ""), machine.version("triton")
    fingerprint = Fingerprint(*names, packages=digest.hexdigest()[:_DIGITS])
    return {**asdict(fingerprint), "folders": folders, "stamp": before}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_own()) + "\n")
