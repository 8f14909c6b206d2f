"""Knobs that several suites have, each said in a line."""

from __future__ import annotations

from runner.catalog.suites.suite import Knob

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


def switch(name: str, help_text: str, default: bool = False) -> Knob:
    """Changes what is measured."""
    return Knob(name, "bool", help_text, default=default)


def extra(name: str, help_text: str) -> Knob:
    """Says or keeps more of the same measurement."""
    return Knob(name, "bool", help_text, default=False, identity=False)


def choice(name: str, help_text: str, *choices: str) -> Knob:
    """One of these, the first where not given."""
    return Knob(name, "choice", help_text, choices=choices, default=choices[0])


def count(name: str, help_text: str, low: int, high: int, default: int) -> Knob:
    """How many of something are taken of the same measurement."""
    return Knob(name, "int", help_text, low, high, default=default, identity=False)


def repeat(help_text: str, low: int, high: int, default: int) -> Knob:
    return count("repeat", help_text, low, high, default)
