"""A file of the user's own as a case: known only to processes that are given its path.

The case is named after the file and the hash of its content, so that a changed file is another case.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from runner.schema.suite import BadRequest, Case, TaskSpec
from runner.suites.torchdynamo import DTYPES, HarnessSuite

NAME = "file"
VARIABLE = "RUNNER_FILE"  # its path, in the environment of whoever runs it
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class FileSuite(HarnessSuite):
    def check(self, task: TaskSpec) -> None:
        if not self.cases:
            raise BadRequest(f"no suite is called {self.name!r} here: this process was given no file")
        super().check(task)

    def argument(self) -> str:
        path = own_file()
        return f"--file {shlex.quote(str(path))}" if path else self.name


def own_file() -> Path | None:
    """Return the file that this process was given."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


def imported(path: Path, name: str) -> ModuleType:
    """Import a Python file under a name, by which dynamo, Triton and pickle look it up."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def file_suite() -> FileSuite:
    """Return the suite whose only case is the given file. Raise OSError if it cannot be read."""
    cases: tuple[Case, ...] = ()
    if path := own_file():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        name = f"{_UNSAFE.sub('-', path.stem)[:100]}-{digest}"
        cases = (Case(name, f"build() of {path.name}", DTYPES),)
    axes = (("dtype", ("float32",)),)
    return FileSuite(NAME, "A file of your own", cases, axes=axes, file_variable=VARIABLE)
