"""Compare the kernels of an A/B run, experiment by experiment: at equal choices, by frequency, one-sided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hud.judging.pairs import KernelComparison, Kernels, compare_kernels
from hud.models import Compilation, Experiment, Kernel, Run
from hud.pages.suite.query import identity


@dataclass(frozen=True)
class KernelLine:
    """The comparison of one experiment; the names are of kernels that one side alone has."""

    experiment: Experiment
    compilations: tuple[int, int]
    found: KernelComparison
    only_base: list[str]
    only_head: list[str]

    @property
    def change(self) -> float | None:
        return None if self.found.ratio is None else self.found.ratio - 1

    @property
    def low(self) -> float | None:
        return None if self.found.low is None else self.found.low - 1

    @property
    def high(self) -> float | None:
        return None if self.found.high is None else self.found.high - 1

    @property
    def better(self) -> bool | None:
        """Return whether the same choices got faster; None without a confirmed change."""
        return None if self.found.equal != "confirmed" or self.change is None else self.change < 0

    def to_row(self) -> dict[str, Any]:
        return {
            **identity(self.experiment),
            "base_compilations": self.compilations[0],
            "new_compilations": self.compilations[1],
            "equal_choices": self.found.equal,
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "p": self.found.p,
            "coverage": self.found.coverage,
            "other_frequencies": self.found.frequencies,
            "other_frequencies_p": self.found.frequencies_p,
            "only_base": self.only_base,
            "only_new": self.only_head,
        }


def read(run: Run) -> list[KernelLine]:
    """Return a line for each experiment with timed kernels on both sides, in 2 statements."""
    wanted = Compilation.objects.filter(run=run).exclude(kernels=[]).order_by("experiment", "repeat")
    names = ("experiment", "side", "kernels", "times_us")
    drawn: dict[int, tuple[list[Kernels], list[Kernels]]] = {}
    rows = list(wanted.values_list(*names))
    about = {
        pk: (slot, choice, name)
        for pk, slot, choice, name in Kernel.objects.filter(
            pk__in={pk for _experiment, _side, kernels, _times in rows for pk in kernels}
        ).values_list("pk", "slot", "choice", "name")
    }
    for experiment, side, kernels, times in rows:
        found = {
            about[pk][0]: (about[pk][1], us) for pk, us in zip(kernels, times, strict=True) if us is not None
        }
        if found:
            drawn.setdefault(experiment, ([], []))[side].append(found)
    experiments = Experiment.objects.in_bulk(pk for pk, sides in drawn.items() if all(sides))
    titles = {slot: name for slot, _choice, name in about.values()}
    return [_line(one, *drawn[pk], titles) for pk, one in sorted(experiments.items())]


def _line(
    experiment: Experiment, base: Sequence[Kernels], head: Sequence[Kernels], titles: dict[str, str]
) -> KernelLine:
    found = compare_kernels(base, head)
    only = ([titles[slot] for slot in slots] for slots in (found.only_base, found.only_head))
    return KernelLine(experiment, (len(base), len(head)), found, *only)
