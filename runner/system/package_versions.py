"""Versions of a Python's packages that influence measurements. None of them is imported.

`python -m runner.system.package_versions` prints it as JSON, for any Python that can start.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What belongs to the class of an environment (measuring rule 1), apart from what torch itself says.
PACKAGES = ("numpy", "transformers", "timm", "torchvision", "torchbenchmark", "torch_xla", "torchao")
_DIGITS = 9  # of a commit
_OF_TORCH = re.compile(r"^(__version__|git_version|cuda)\b[^=\n]*= '([^']+)'", re.MULTILINE)


def version(package: str) -> str:
    """Return a package's version from its metadata; '' if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Return the versions of the installed packages, torch's with its commit."""
    found = {name: version(name) for name in ("triton", *PACKAGES)}
    found |= {"python": platform.python_version(), "torch": _torch_with_commit()}
    return {name: text for name, text in found.items() if text}


def modules() -> list[str]:
    """Which of the packages can be imported, also without metadata."""
    return [name for name in PACKAGES if importlib.util.find_spec(name)]


def versions_of(record: Mapping[str, Any]) -> dict[str, str]:
    """The same, as a record (v3) says it of where it was measured."""
    runner = (record.get("runners") or [{}])[0]
    found = {"python": runner.get("extra_info", {}).get("python", "")}
    for name, said in (record.get("dependencies") or {}).items():
        found[name] = _with_commit(said.get("version", ""), said.get("sha", ""))
    return {name: text for name, text in found.items() if text}


def torch_says() -> dict[str, str]:
    """`__version__`, `git_version` and `cuda` out of the file that torch itself has them from: its metadata
    may spell the version otherwise."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return {}
    with contextlib.suppress(OSError):
        return dict(_OF_TORCH.findall(Path(found.origin).with_name("version.py").read_text()))
    return {}


def _torch_with_commit() -> str:
    said = torch_says()
    return _with_commit(said.get("__version__", ""), said.get("git_version", ""))


def _with_commit(version: str, commit: str) -> str:
    return f"{version} {commit[:_DIGITS]}".strip()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(versions()) + "\n")
