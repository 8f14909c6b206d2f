"""The suites' tables: CSV files in their folders, such as their options and models."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.schema.options import Option
from runner.schema.tables import rows

# A cell of the column `default` by kind of option; an empty one is no default.
_DEFAULTS: dict[str, Any] = {"int": int, "bool": lambda text: text == "true", "choice": str}


@functools.cache
def rows_of(suite: str, table: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of a suite, none where it has no such table."""
    path = Path(__file__).parent / suite / f"{table}.csv"
    return tuple(rows(str(path), path.name)) if path.exists() else ()


def options_of(suite: str) -> tuple[Option, ...]:
    """Return the options of a suite's table in its order. One of which it has only the name is in the table
    beside this file, since several suites have it."""
    shared = {row["name"]: row for row in rows_of("", "options")}
    rows = [row if row["kind"] else shared[row["name"]] for row in rows_of(suite, "options")]
    return tuple(
        Option(
            row["name"],
            row["kind"],  # type: ignore[arg-type] # tests check the words of the tables
            row["help"],
            int(row["low"] or 0),
            int(row["high"] or 0),
            tuple(row["choices"].split()),
            _DEFAULTS[row["kind"]](row["default"]) if row["default"] else None,
            identity=row["identity"] == "yes",
        )
        for row in rows
    )
