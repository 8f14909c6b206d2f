"""The A/B comparison of a run: a line for each experiment and metric, and one for the kernels of each
experiment: the code at equal choices, the autotuner's choices, and kernels of one side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hud.columns import Columns
from hud.judging.choices import Kernels, TimedChoice
from hud.judging.pairs import KernelComparison, PairVerdict, compare_kernels, judge_pairs
from hud.models import STATUS_NAMES, Compilation, Experiment, Kernel, Metric, Run, Series
from hud.pages.suite.query import identity
from hud.points.read import metric_place
from hud.sql import fetch_tuples

_PAIR = Columns("""
    metric=metric.name unit=metric.unit direction=metric.direction base=verdict.base new=verdict.head
    change low high p pairs=verdict.pairs verdict=verdict.word better=verdict.better base_status
    new_status=head_status base_values=base new_values=head
""")
_KERNELS = Columns(
    """base_compilations new_compilations equal_choices=found.code.word change low high p=found.code.p
    coverage other_frequencies=found.choice.frequencies other_frequencies_p=found.choice.frequencies_p
    only_base only_new=only_head""",
    base_compilations=lambda line: line.compilations[0],
    new_compilations=lambda line: line.compilations[1],
)


@dataclass(frozen=True)
class PairLine:
    """One metric of one experiment on both sides; the lists have an entry for each pair."""

    experiment: Experiment
    metric: Metric
    base: list[float | None]
    head: list[float | None]
    verdict: PairVerdict
    change: float | None  # relative, of the geometric mean, with its 95 % interval
    low: float | None
    high: float | None
    p: float | None
    base_status: str  # the first that is not ok, else ok
    head_status: str

    @property
    def ratios(self) -> list[float | None]:
        return [b / a if a and b is not None else None for a, b in zip(self.base, self.head, strict=True)]

    @property
    def changes(self) -> list[float | None]:
        return [None if ratio is None else ratio - 1 for ratio in self.ratios]

    def to_row(self) -> dict[str, Any]:
        return {**identity(self.experiment), **_PAIR.row(self)}


def read(run: Run) -> list[PairLine]:
    """Lines by experiment, and inside one as its suite is read: 2 statements."""
    rows = fetch_tuples(
        """
        SELECT series_id, repeat, side, value, status, quality FROM hud_measurement
        WHERE run_id = %(run)s AND draw IS NULL  -- of free processes
        ORDER BY series_id, repeat, side
        """,
        {"run": run.pk},
    )
    by_series: dict[int, list[Sequence[Any]]] = {}
    for pk, *row in rows:
        by_series.setdefault(pk, []).append(row)
    series = Series.objects.select_related("metric", "experiment").in_bulk(by_series)
    lines = [_line(series[pk], measured) for pk, measured in by_series.items()]
    return sorted(
        lines,
        key=lambda line: (
            line.experiment.case,
            line.experiment.title,
            line.experiment.dtype,
            metric_place(line.experiment.suite, line.metric),
        ),
    )


def _line(series: Series, rows: Sequence[Sequence[Any]]) -> PairLine:
    values = {(repeat, side): value for repeat, side, value, *_about in rows}
    deciding = {(repeat, side): value for repeat, side, value, _status, quality in rows if not quality}
    pairs = range(rows[-1][0] + 1)
    base, head = ([values.get((pair, side)) for pair in pairs] for side in (0, 1))
    metric = series.metric
    judged = ([deciding.get((pair, side)) for pair in pairs] for side in (0, 1))
    verdict = judge_pairs(*judged, direction=metric.direction, kind=metric.kind)  # type: ignore[arg-type]
    found = verdict.change
    change, p = (found.change, found.p) if found else (None, None)
    low, high = (_relative(found.low), _relative(found.high)) if found else (None, None)
    statuses = []
    for side in (0, 1):
        codes = [status for _repeat, own, _value, status, _quality in rows if own == side]
        word = STATUS_NAMES.get(next(filter(None, codes), 0), "failed")
        statuses.append(word if codes else "not_run")
    return PairLine(series.experiment, metric, base, head, verdict, change, low, high, p, *statuses)


def _relative(log_ratio: float | None) -> float | None:
    """Return the ratio's change; None also where a few wild pairs leave the interval without an end."""
    return math.expm1(log_ratio) if log_ratio is not None and log_ratio < 700 else None


@dataclass(frozen=True)
class KernelLine:
    """The comparison of one experiment's kernels; the names are of kernels that one side alone has."""

    experiment: Experiment
    compilations: tuple[int, int]
    found: KernelComparison
    change: float | None
    low: float | None
    high: float | None
    only_base: list[str]
    only_head: list[str]

    @property
    def coverage(self) -> float | None:
        """Return the share of the device time at equal choices; None if nothing was measured at them."""
        percent = self.found.equal_choice_percent
        return None if percent is None else percent / 100

    @property
    def better(self) -> bool | None:
        """Return whether the same choices got faster; None without a confirmed change."""
        return None if self.found.code.word != "confirmed" or self.change is None else self.change < 0

    def to_row(self) -> dict[str, Any]:
        return {**identity(self.experiment), **_KERNELS.row(self)}


def read_kernels(run: Run) -> list[KernelLine]:
    """Return a line for each experiment with timed kernels on both sides, in 3 statements."""
    rows = Compilation.objects.filter(run=run, draw=None).exclude(kernels=[]).order_by("experiment", "repeat")
    kernels = Kernel.objects.in_bulk({pk for row in rows for pk in row.kernels})
    drawn: dict[int, tuple[list[Kernels], list[Kernels]]] = {}
    for row in rows:
        timed = {
            kernels[pk].slot: TimedChoice(kernels[pk].config or kernels[pk].choice, us)
            for pk, us in zip(row.kernels, row.times_us, strict=True)
            if us is not None
        }
        if timed:
            drawn.setdefault(row.experiment_id, ([], []))[row.side].append(timed)
    experiments = Experiment.objects.in_bulk(pk for pk, sides in drawn.items() if all(sides))
    titles = {kernel.slot: kernel.name for kernel in kernels.values()}
    lines = []
    for pk, experiment in sorted(experiments.items()):
        base, head = drawn[pk]
        found = compare_kernels(base, head)
        change, low, high = (
            None if ratio is None else ratio - 1
            for ratio in (found.code.ratio, found.code.low, found.code.high)
        )
        only = ([titles[slot] for slot in slots] for slots in (found.one_sided.base, found.one_sided.head))
        lines.append(KernelLine(experiment, (len(base), len(head)), found, change, low, high, *only))
    return lines
