"""Short forms for options that several suites have."""

from __future__ import annotations

from typing import Any

from runner.schema.suite import EXPLAIN, Option

# Of suites that time eager and compiled calls in turn.
BUDGET_S = Option(
    "budget_s",
    "int",
    "time for more pairs where 0.5 % is not reached",
    low=0,
    high=600,
    default=5,
    identity=False,
)


# Of suites that check what they compile.
EXPLAIN_FAILURE = Option(
    EXPLAIN,
    "int",
    "after a wrong result or a failed compile: seconds to find the part of the compiler at fault",
    low=0,
    high=1800,
    default=0,
    identity=False,
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


def count(name: str, help_text: str, low: int, high: int, default: int) -> Option:
    """Return a number that does not change what is measured."""
    return Option(name, "int", help_text, low, high, default=default, identity=False)


def repeat(help_text: str, low: int, high: int, default: int) -> Option:
    return count("repeat", help_text, low, high, default)
