"""Texts of a record."""

from __future__ import annotations

import unicodedata
from typing import Any


def text(value: Any) -> str:
    """A text as it is, '' for anything else."""
    return value if isinstance(value, str) else ""


def composed(name: str) -> str:
    """The same name in the one way it is kept: é is one character, however its writer spelt it."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)
