"""Lines of the JSON and CSV views that are an object's own attributes."""

from __future__ import annotations

from typing import Any


def attributes(row: object, names: str) -> dict[str, Any]:
    """Return the attributes of a row that `names` lists, separated by spaces."""
    return {name: getattr(row, name) for name in names.split()}
