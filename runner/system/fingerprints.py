"""Fingerprints of interpreters, looked at again before each task.

`python -m runner.system.fingerprints` prints its interpreter's as JSON, without importing torch, with the
folders of its packages. A look reads size and time of the RECORD files there, and asks the interpreter again
only if one has changed.
"""

import contextlib
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner.schema.protocol import CHANGED_INTERPRETER, Fingerprint
from runner.schema.tasks import TaskOutcome
from runner.system import machine
from runner.system.environment import torch_says, version
from runner.system.interpreters import Interpreter

_MODULE = "runner.system.fingerprints"  # also where this file is run as __main__
_DIGITS = 16
_ASKED_S = 20
_SILENT_S = 60.0
logger = logging.getLogger(__name__)


class Fingerprints:
    """The fingerprints of a host's interpreters, in a file that its agent and its workers share."""

    def __init__(self, path: Path, pythons: Mapping[str, Interpreter]) -> None:
        self._path = path
        self._pythons = pythons
        self._silent: dict[str, float] = {}  # when one that did not answer is asked again

    def look(self) -> dict[str, Fingerprint]:
        """Return the fingerprints by name, without an interpreter that does not answer."""
        known, found = self._load(), {}
        for name, python in self._pythons.items():
            key = json.dumps([python.path, dict(python.environment)])
            if key not in known or known[key]["stamp"] != stamp(known[key]["folders"]):
                if time.monotonic() < self._silent.get(key, 0.0):
                    continue
                try:
                    answer = machine.asked(
                        _MODULE, python=python.path, variables=python.environment, limit_s=_ASKED_S
                    )
                    known[key] = {**answer, "folders": list(answer["folders"]), "stamp": str(answer["stamp"])}
                except (RuntimeError, ValueError, LookupError, TypeError) as error:
                    logger.warning("interpreter %s has no fingerprint: %s", name, error)
                    self._silent[key] = time.monotonic() + _SILENT_S
                    continue
                self._save(known)
            found[name] = Fingerprint.from_json(known[key])
        return found

    def checked(
        self, outcome: TaskOutcome, names: Iterable[str], begun: Mapping[str, Fingerprint], place: str
    ) -> TaskOutcome:
        """Return a task's outcome: `failed` if one of its interpreters is not the one that has `begun`."""
        now = self.look()
        for name in names:
            if name in begun and now.get(name) != begun[name]:
                change = f"{begun[name]} → {now.get(name, 'it does not answer')}"
                reason = f"interpreter {name} of {place} changed while the task ran: {change}"
                return replace(outcome, status="failed", code=CHANGED_INTERPRETER, reason=reason)
        return outcome

    def _load(self) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return known

    def _save(self, known: Mapping[str, Any]) -> None:
        fresh = self._path.with_suffix(f".{os.getpid()}")
        try:
            fresh.write_text(json.dumps(known))
            fresh.replace(self._path)
        except OSError as error:  # a full disk: the next look asks again
            logger.warning("fingerprints of interpreters are not kept: %s", error)


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
    before, torch, digest = stamp(folders), torch_says(), hashlib.sha256()
    for file in (file for folder in folders for file in _records(folder)):
        with contextlib.suppress(OSError):
            digest.update(f"{file.parent.name}\n".encode() + file.read_bytes())
    names = torch.get("__version__", ""), torch.get("git_version", ""), version("triton")
    found = Fingerprint(*names, packages=digest.hexdigest()[:_DIGITS])
    return {**asdict(found), "folders": folders, "stamp": before}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_own()) + "\n")
