"""Fingerprint of an interpreter, which a run freezes: everything in it is measured with the same packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_DIGITS = 9  # of a commit
CHANGED_INTERPRETER = "changed_interpreter"  # code of a task that ends for it


@dataclass(frozen=True)
class Fingerprint:
    """The torch and Triton of an interpreter, and a digest of the RECORD files of all its packages; '' for
    what it has not."""

    torch: str = ""
    torch_git: str = ""
    triton: str = ""
    packages: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Fingerprint:
        return cls(**{field.name: str(value.get(field.name) or "") for field in fields(cls)})

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return what a comparison is about. Two hosts with the same wheels may differ in their RECORD files,
        which also list what an installer wrote."""
        return self.torch, self.torch_git, self.triton

    def __str__(self) -> str:
        commit = f" ({self.torch_git[:_DIGITS]})" if self.torch_git else ""
        parts = [f"torch {self.torch or 'missing'}{commit}", self.triton and f"triton {self.triton}"]
        return ", ".join(filter(None, [*parts, self.packages and f"packages {self.packages}"]))
