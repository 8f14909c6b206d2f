"""Knobs that several suites have, each said in a line."""

from __future__ import annotations

from typing import Any

from runner.schema.suite import Knob

# Of suites that time eager and compiled calls in turn.
BUDGET_S = Knob(
    "budget_s",
    "int",
    "time for more pairs where 0.5 % is not reached",
    low=0,
    high=600,
    default=5,
    identity=False,
)


def switch(name: str, help_text: str, default: bool = False, **more: Any) -> Knob:
    """Changes what is measured. `more` are other fields of a knob, here and below."""
    return Knob(name, "bool", help_text, default=default, **more)


def extra(name: str, help_text: str, **more: Any) -> Knob:
    """Says or keeps more of the same measurement."""
    return Knob(name, "bool", help_text, default=False, identity=False, **more)


def choice(name: str, help_text: str, *choices: str, **more: Any) -> Knob:
    """One of these, the first where not given."""
    return Knob(name, "choice", help_text, choices=choices, default=choices[0], **more)


def count(name: str, help_text: str, low: int, high: int, default: int) -> Knob:
    """How many of something are taken of the same measurement."""
    return Knob(name, "int", help_text, low, high, default=default, identity=False)


def repeat(help_text: str, low: int, high: int, default: int) -> Knob:
    return count("repeat", help_text, low, high, default)
