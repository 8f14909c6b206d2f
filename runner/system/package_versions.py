"""Versions of this Python's packages that influence measurements. None of them is imported."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.schema.records import runner_facts

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


def modules() -> list[str]:
    """Return which of the packages can be imported, also without metadata."""
    return [name for name in PACKAGES if importlib.util.find_spec(name)]


def versions_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions in a record (v3) by package, torch's with its commit."""
    found = {"python": runner_facts(record).get("python", "")}
    for name, said in (record.get("dependencies") or {}).items():
        found[name] = f"{said.get('version', '')} {said.get('sha', '')[:_DIGITS]}".strip()
    return {name: text for name, text in found.items() if text}


def torch_says() -> dict[str, str]:
    """Return `__version__`, `git_version` and `cuda` from torch's `version.py`: its metadata may spell the
    version otherwise."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return {}
    with contextlib.suppress(OSError):
        return dict(_OF_TORCH.findall(Path(found.origin).with_name("version.py").read_text()))
    return {}
