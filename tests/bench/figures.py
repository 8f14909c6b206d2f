"""What a part finds, and how it is shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A value, or the median of repetitions with the smallest and the largest of them."""

    part: str
    what: str
    value: float
    unit: str
    limit: float | None = None  # what CONTRIBUTING's figures allow; None: no figure is set
    low: float | None = None
    high: float | None = None
    load: float | None = None  # of the machine in the last minute, when this was taken

    @property
    def held(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def line(self) -> str:
        spread = "" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"
        limit = "" if self.limit is None else f"at most {self.limit:g}{'' if self.held else '  MISSED'}"
        return (
            f"{self.part:<7} {self.what:<72} {self.value:>9.3f} {self.unit:<4} {spread:<18} {limit}".rstrip()
        )


def median_of(part: str, what: str, values: Sequence[float], unit: str, limit: float | None = None) -> Figure:
    return Figure(part, what, statistics.median(values), unit, limit, min(values), max(values))
