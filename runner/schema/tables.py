"""Read the tables of data that stand as CSV beside a module."""

import csv
from pathlib import Path


def rows(module: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a table beside a module, given by its `__file__`. Lines that begin with # are
    comments."""
    lines = Path(module).with_name(name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))
