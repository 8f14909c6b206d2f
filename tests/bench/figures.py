"""What a part finds, and how it is shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A value, or the median of repetitions, which are its samples."""

    part: str
    what: str
    value: float
    unit: str
    limit: float | None = None  # what CONTRIBUTING's figures allow; None: no figure is set
    samples: tuple[float, ...] = ()
    load: float | None = None  # of the machine in the last minute, when this was taken

    @property
    def held(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def line(self) -> str:
        spread = f"{min(self.samples):.3f} to {max(self.samples):.3f}" if self.samples else ""
        limit = "" if self.limit is None else f"at most {self.limit:g}{'' if self.held else '  MISSED'}"
        return (
            f"{self.part:<7} {self.what:<72} {self.value:>9.3f} {self.unit:<4} {spread:<18} {limit}".rstrip()
        )


def median_of(part: str, what: str, values: Sequence[float], unit: str, limit: float | None = None) -> Figure:
    return Figure(part, what, statistics.median(values), unit, limit, tuple(values))
