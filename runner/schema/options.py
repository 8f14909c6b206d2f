"""Options of suites."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

OptionValue = bool | int | str | list[int]
EXPLAIN = "explain"  # option: seconds to find the part of the compiler at fault for a failure
EXPLAIN_S = 900
# A cell of the column `default` by kind of option; an empty one is no default.
_DEFAULTS: dict[str, Any] = {"int": int, "bool": lambda text: text == "true", "choice": str}
# Flags of XLA's command line, but those that name a file, since a host's files are no business of a request.
_FLAG = r"--xla_(?!\w*(dump|file|path|dir|_to(?!\w)))\w{1,80}(=[\w.:-]{1,80})?"
_TEXTS = {  # kinds of texts: what matches in full, and how to say it
    "word": (r"[\w.:()*#-]{1,100}", "no name of up to 100 letters, digits and .:()*#_-"),
    "flags": (f"{_FLAG}( {_FLAG}){{0,9}}", "not --xla_NAME=VALUE, several with blanks, none of a file"),
}


def setting_text(value: object) -> str:
    """Return the value of an option as a command takes it; integers are joined by +."""
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Option:
    """One bounded setting of a suite. `ints` is a list of distinct integers within the bounds, `word` a name
    that the suite looks up, `flags` up to ten of XLA's.

    An option at its `default` counts as not given; with None the suite decides by the case. An option without
    `identity` changes how long a measurement takes or what is kept of it, not what it means.
    """

    name: str
    kind: Literal["bool", "int", "ints", "choice", "word", "flags"]
    help: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    default: bool | int | str | None = None
    identity: bool = True

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> "Option":
        """Return the option of a table's row. Where the table has no kinds, those with bounds are integers,
        the others on or off."""
        kind, default = row.get("kind") or ("int" if row["high"] else "bool"), row.get("default")
        return cls(
            row["name"],
            kind,  # type: ignore[arg-type] # tests check the words of the tables
            row["help"],
            int(row["low"] or 0),
            int(row["high"] or 0),
            tuple(row.get("choices", "").split()),
            _DEFAULTS[kind](default) if default else None,
            identity=row.get("identity", "yes") == "yes",
        )

    def problem(self, value: object) -> str:
        """Return why the value cannot be, or ''."""
        if self.kind == "bool":
            return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
        if self.kind == "choice":
            return "" if value in self.choices else f"{value!r} is not one of {', '.join(self.choices)}"
        if self.kind in _TEXTS:
            pattern, problem = _TEXTS[self.kind]
            known = isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII)
            return "" if known else f"{value!r} is {problem}"
        if self.kind == "int":
            return self._number_problem(value)
        if not isinstance(value, list) or not 1 <= len(value) <= 16 or len(set(map(str, value))) < len(value):
            return f"{value!r} is not a list of 1 to 16 distinct integers"
        return next((text for text in map(self._number_problem, value) if text), "")

    def _number_problem(self, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is not an integer"
        return "" if self.low <= value <= self.high else f"{value} is not within {self.low} to {self.high}"
