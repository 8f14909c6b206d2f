"""The lines of the page's tables. Times are in µs of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from hud.judging.choices import Regret
from hud.models import Experiment
from hud.pages.attributes import attributes
from hud.pages.code.table import short_name
from hud.pages.limits.ceilings import Ceilings
from hud.pages.suite.query import identity


@dataclass(slots=True)
class KernelLine:
    """A kernel of an experiment; times in µs of a step."""

    experiment_id: int
    run: int
    slot: str
    name: str
    kind: str
    origins: list[str]
    calls: float
    time_us: float
    memory_us: float | None
    compute_us: float | None
    experiment: Experiment = field(init=False)

    @property
    def short_name(self) -> str:
        return short_name(self.name)

    @property
    def floor_us(self) -> float:
        """Return the time at the ceiling, at most its own: a kernel that only reads may beat a copy."""
        return min(self.time_us, max(self.memory_us or 0.0, self.compute_us or 0.0))

    @property
    def lost_us(self) -> float:
        return self.time_us - self.floor_us

    @property
    def bound(self) -> str:
        return "memory" if (self.memory_us or 0.0) >= (self.compute_us or 0.0) else "compute"

    @property
    def operators(self) -> str:
        names = [origin.rpartition("aten.")[2] for origin in self.origins]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    @property
    def side(self) -> str:
        return f"run:{self.run}/experiment:{self.experiment_id}"

    def to_row(self) -> dict[str, Any]:
        return {
            **identity(self.experiment),
            "kernel": self.name,
            "kind": self.kind,
            **attributes(self, "slot calls time_us"),
            "ceiling_us": self.floor_us,
            "lost_us": self.lost_us,
            "share_of_ceiling": self.floor_us / self.time_us if self.time_us else None,
            **attributes(self, "bound run"),
        }


@dataclass(slots=True)
class ModelLine:
    """The kernels of one experiment together; times in µs of a step."""

    experiment_id: int
    run: int
    busy_us: float
    gaps_us: float
    floor_us: float  # of kernels with a formula
    covered_us: float  # the time of those
    experiment: Experiment = field(init=False)

    @property
    def lost_us(self) -> float:
        return self.covered_us - self.floor_us

    @property
    def nameless_us(self) -> float:
        """Return the time of kernels without a formula."""
        return max(self.busy_us - self.covered_us, 0.0)

    @property
    def bars(self) -> list[tuple[str, float, float]]:
        """Return tone, start and length of each part of the line's bar."""
        lengths_us = self.floor_us, self.lost_us, self.nameless_us, self.gaps_us
        starts_us = accumulate(lengths_us, initial=0.0)
        return list(zip(("whole", "slower", "draw", "none"), starts_us, lengths_us, strict=False))

    @property
    def share(self) -> float | None:
        return self.floor_us / self.covered_us if self.covered_us else None

    @property
    def coverage(self) -> float:
        return min(self.covered_us / self.busy_us, 1.0) if self.busy_us else 0.0

    def to_row(self) -> dict[str, Any]:
        return {
            **identity(self.experiment),
            **attributes(self, "busy_us gaps_us lost_us run"),
            "ceiling_us": self.floor_us,
            "share_of_ceiling": self.share,
            "covered": self.coverage,
        }


@dataclass(slots=True)
class RegretLine:
    """What unlucky choices cost an experiment; the range is that of its newest compilations."""

    experiment_id: int
    value: float
    note: str | None
    low_us: float | None
    high_us: float | None
    experiment: Experiment = field(init=False)

    @property
    def found(self) -> Regret | None:
        """Return the regret with its interval, where it is known."""
        return Regret.from_note(self.value, self.note)

    @property
    def interval(self) -> str:
        """Return the 95 % interval as the page writes it."""
        found = self.found
        return f"{100 * found.low:.1f} to {100 * found.high:.1f} %" if found else ""

    def to_row(self) -> dict[str, Any]:
        found = self.found
        return {
            **identity(self.experiment),
            "regret": self.value,
            "low": found.low if found else None,
            "high": found.high if found else None,
            "compilations": found.compilations if found else None,
            "note": self.note,
        }


@dataclass(slots=True)
class Nameless:
    """A kernel without bytes and FLOPs, over all experiments."""

    name: str
    kind: str
    time_us: float
    experiments: int


@dataclass(slots=True)
class ArchLine:
    arch: str
    experiments: int
    ceilings: Ceilings = field(default_factory=Ceilings)
