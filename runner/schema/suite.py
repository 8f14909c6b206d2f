"""What a suite declares: cases, and knobs with bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_WORD = re.compile(r"[\w.:()*#-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class Knob:
    """One bounded setting of a suite. `ints` is a list of distinct integers within the bounds, `word` a name
    that is looked up among what the suite knows.

    A knob at its `default` is as good as not given; None says that the suite decides by the case. One
    without `identity` changes how long a measurement takes or what is kept of it, not what it means.
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
        """Why this value cannot be, or '' where it can."""
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


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    module: str  # imported in the child only
    cases: tuple[Case, ...]
    backends: tuple[str, ...]
    modes: tuple[str, ...] = ("inference",)
    devices: tuple[str, ...] = ("cuda", "cpu")
    knobs: tuple[Knob, ...] = ()
    dynamic: bool = False
    timeout_s: int = 600
    # A matrix: mode, backend, dtype and knobs that a command runs in all these values where it names none;
    # a command that names a backend leaves the knobs to the backend.
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    backend_pattern: str = ""  # other backends whose whole name matches can be named too
    packages: tuple[str, ...] = ()  # what an interpreter must have besides torch to run any of it
    inductor_options: bool = False  # what inductor compiles takes options of `catalog/inductor_options.py`

    def has_backend(self, name: str) -> bool:
        return name in self.backends or bool(re.fullmatch(self.backend_pattern or "(?!)", name))
