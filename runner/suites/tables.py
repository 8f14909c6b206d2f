"""The suites' tables: CSV files in their folders, such as their options and models."""

import functools
from collections.abc import Mapping
from pathlib import Path

from runner.schema.options import Option
from runner.schema.tables import rows


@functools.cache
def rows_of(suite: str, table: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of a suite, none where it has no such table."""
    path = Path(__file__).parent / suite / f"{table}.csv"
    return tuple(rows(str(path), path.name)) if path.exists() else ()


def options_of(suite: str) -> tuple[Option, ...]:
    """Return the options of a suite's table in its order. One of which it has only the name is in the table
    beside this file, since several suites have it."""
    shared = {row["name"]: row for row in rows_of("", "options")}
    rows = (row if row["kind"] else shared[row["name"]] for row in rows_of(suite, "options"))
    return tuple(map(Option.of_row, rows))
