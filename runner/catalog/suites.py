"""The suites. Adding one is an entry here and a file in `runner/suites/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Knob:
    """One bounded setting of a suite. `ints` is a list of distinct integers within the bounds."""

    name: str
    kind: Literal["bool", "int", "ints", "choice"]
    help: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()

    def problem(self, value: object) -> str:
        """Why this value cannot be, or '' where it can."""
        if self.kind == "bool":
            return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
        if self.kind == "choice":
            return "" if value in self.choices else f"{value!r} is not one of {', '.join(self.choices)}"
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


# gpt-fast's four sizes; a CPU takes smaller ones, so that one kernel stays under a minute.
MICRO_SIZES = {"cuda": (1024, 4096, 8192, 16384), "cpu": (256, 512, 1024, 2048)}
_REPEAT = Knob("repeat", "int", "samples of call time for each shape, at least", low=20, high=1000)

_MICRO = Suite(
    name="micro",
    title="gpt-fast's micro-benchmarks",
    module="runner.suites.micro",
    cases=(
        Case("layer_norm", "LayerNorm over 4096 rows of D", ("bfloat16",)),
        Case("gemv", "D×D matrix times vector", ("int8", "bfloat16")),
        Case("gather_gemv", "Two of eight D×D matrices times vector", ("int8", "bfloat16")),
        Case("mlp_layer_norm_gelu", "Linear, LayerNorm, Linear, LayerNorm of one vector of D", ("bfloat16",)),
    ),
    backends=("inductor",),
    knobs=(
        Knob("D", "ints", "sizes; the mean is derived only from the full set", low=64, high=16384),
        _REPEAT,
    ),
)

_CEILINGS = Suite(
    name="ceilings",
    title="What the host itself reaches",
    module="runner.suites.ceilings",
    cases=(
        Case("copy", "Copy of a block larger than every cache, bytes read and written", ("bfloat16",)),
        Case("read", "Sum of a block larger than every cache, bytes read", ("bfloat16",)),
        Case("matmul", "Matrix product 8192×8192×8192 (1024 on a CPU), random data", ("bfloat16",)),
    ),
    backends=("eager",),
)

SUITES: dict[str, Suite] = {suite.name: suite for suite in (_MICRO, _CEILINGS)}
