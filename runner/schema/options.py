"""Options of suites, and short forms for those that several suites have."""

import re
from dataclasses import dataclass
from typing import Any, Literal

OptionValue = bool | int | str | list[int]
EXPLAIN = "explain"  # option: seconds to find the part of the compiler at fault for a failure
EXPLAIN_S = 900
_WORD = re.compile(r"[\w.:()*#-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class Option:
    """One bounded setting of a suite. `ints` is a list of distinct integers within the bounds, `word` a name
    that the suite looks up.

    An option at its `default` counts as not given; with None the suite decides by the case. An option without
    `identity` changes how long a measurement takes or what is kept of it, not what it means.
    """

    name: str
    kind: Literal["bool", "int", "ints", "choice", "word"]
    help: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    default: bool | int | str | None = None
    identity: bool = True

    def problem(self, value: object) -> str:
        """Return why the value cannot be, or ''."""
        if self.kind == "bool":
            return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
        if self.kind == "choice":
            return "" if value in self.choices else f"{value!r} is not one of {', '.join(self.choices)}"
        if self.kind == "word":
            known = isinstance(value, str) and _WORD.fullmatch(value)
            return "" if known else f"{value!r} is no name of up to 100 letters, digits and .:()*#_-"
        if self.kind == "int":
            return self._number_problem(value)
        if not isinstance(value, list) or not 1 <= len(value) <= 16 or len(set(map(str, value))) < len(value):
            return f"{value!r} is not a list of 1 to 16 distinct integers"
        return next((text for text in map(self._number_problem, value) if text), "")

    def _number_problem(self, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is not an integer"
        return "" if self.low <= value <= self.high else f"{value} is not within {self.low} to {self.high}"


def count(name: str, help_text: str, low: int, high: int, default: int) -> Option:
    """Return a number that does not change what is measured."""
    return Option(name, "int", help_text, low, high, default=default, identity=False)


# Of suites that time eager and compiled calls in turn.
BUDGET_S = count("budget_s", "time for more pairs where 0.5 % is not reached", 0, 600, 5)
# Of suites that check what they compile.
EXPLAIN_FAILURE = count(
    EXPLAIN,
    "after a wrong result or a failed compile: seconds to find the part of the compiler at fault",
    *(0, 1800, 0),
)


def switch(name: str, help_text: str, default: bool = False, **more: Any) -> Option:
    """Return an option that changes what is measured. `more` are other fields of `Option`."""
    return Option(name, "bool", help_text, default=default, **more)


def extra(name: str, help_text: str, **more: Any) -> Option:
    """Return an option that reports or keeps more of the same measurement."""
    return Option(name, "bool", help_text, default=False, identity=False, **more)


def choice(name: str, help_text: str, *choices: str, **more: Any) -> Option:
    """Return an option with these choices; the first is the default."""
    return Option(name, "choice", help_text, choices=choices, default=choices[0], **more)


def repeat(help_text: str, low: int, high: int, default: int) -> Option:
    return count("repeat", help_text, low, high, default)
