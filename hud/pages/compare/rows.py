"""A row of a comparison: an experiment on all sides, its regression, and how to rerun it in pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.judging.regressions.states import ACTIVE
from hud.models import Environment, Experiment, Metric, Regression
from hud.pages.compare.judged import Judged
from hud.pages.compare.points import Point, add_details
from hud.pages.compare.sides import Side
from hud.pages.hosts.pairs import Builds, Rerun
from hud.sql import by_id, fetch_models, fetch_tuples, int_array

_BREAKS = "graph_breaks"


@dataclass
class Row:
    """An experiment on all sides. `cells` has the most telling metric for each candidate, None where a side
    lacks it; then `alone` has the point of the side that has one. `complete` adds regression and reasons, and
    only `add_experiments` the last two."""

    pk: int
    cells: list[Judged | None]
    also: list[str] = field(default_factory=list)  # titles of further metrics that moved
    alone: Point | None = None
    alone_metric: Metric | None = None
    regression: Regression | None = None
    facts: str = ""
    code: tuple[str, str] | None = None  # sides of the page that compares kernels
    rerun: Rerun | None = None  # of what moved, in pairs where a host can
    experiment: Experiment = field(init=False)
    stream: str = ""  # of the candidate, for links
    with_arch: bool = False  # rows of several arches are shown

    @property
    def best(self) -> Judged | None:
        there = [cell for cell in self.cells if cell]
        if len(there) < 2:
            return there[0] if there else None
        return max(there, key=lambda cell: (cell.moved, cell.undecided, cell.score))

    @property
    def about(self) -> str:
        """Return what tells experiments of one title apart."""
        one = self.experiment
        mode = "" if one.mode == "inference" else one.mode
        arch = (one.arch or one.device) if self.with_arch else ""
        return " · ".join(filter(None, (one.suite, one.backend, one.dtype, mode, arch)))

    @property
    def only(self) -> str:
        return "" if self.alone is None else "base" if self.alone.place == 0 else "head"

    @property
    def score(self) -> float:
        return self.best.score if self.best else 0.0

    def to_rows(self, heads: Sequence[Side], about: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a row for each candidate; `about` identifies the experiment."""
        state = {"regression": self.regression.pk, "state": self.regression.state} if self.regression else {}
        if self.alone is not None and self.alone_metric is not None:
            metric, point = self.alone_metric, self.alone
            value = {"metric": metric.name, "unit": metric.unit, self.only: point.value, "reason": point.note}
            verdict = "not_run" if self.only == "base" else "new"
            return [{**about, **value, "verdict": verdict, "only": self.only, **state}]
        return [
            {**about, "side": side.text, "stream": side.stream, **cell.to_row(), **state}
            for side, cell in zip(heads, self.cells, strict=True)
            if cell
        ]


def complete(rows: Sequence[Row]) -> None:
    """Add the regressions of these rows, and the reasons of what has no value or failed: 2 statements."""
    _add_regressions(rows)
    alone = [row.alone for row in rows if row.alone]
    add_details([*alone, *(cell.head for row in rows for cell in row.cells if cell and not cell.head.good)])


def _add_regressions(rows: Iterable[Row]) -> None:
    """Add the regression that each moved row belongs to: 1 statement."""
    moved = {
        best.head.series_id: row for row in rows if (best := row.best) and (best.moved or best.undecided)
    }
    active = "WHERE series_id = ANY(%(series)s::int[]) AND state = ANY(%(active)s) ORDER BY id"
    for one in fetch_models(Regression, active, {"series": int_array(moved), "active": list(ACTIVE)}):
        moved[one.series_id].regression = one


def add_experiments(rows: Sequence[Row], environments: Mapping[int, Environment]) -> None:
    """Add the experiments, and how to compare both sides' versions of torch again: 2 statements, 1 where
    nothing moved."""
    experiments = by_id(Experiment, [row.pk for row in rows])
    for row in rows:
        row.experiment = experiments[row.pk]
    moved = [(row, best) for row in rows if (best := row.best) and (best.moved or best.undecided)]
    if not moved:
        return
    builds = Builds()
    for row, best in moved:
        base, head = (environments[point.environment_id] for point in (best.base, best.head))
        torches = (base.torch, base.torch_git), (head.torch, head.torch_git)
        row.rerun = builds.pairs(row.experiment, best.metric.name, *torches)


_KernelsOf = Mapping[tuple[int, int], int]  # by run and experiment


def count_kernels(judged: Iterable[list[list[Judged]]]) -> _KernelsOf:
    """Return how many kernels the compilations of all moved points have, where known: 1 statement."""
    moved = [one for of_heads in judged for pairs in of_heads for one in pairs if one.moved or one.undecided]
    rows = fetch_tuples(
        """
        SELECT run_id, experiment_id, max(cardinality(kernels)) FROM hud_compilation
        WHERE experiment_id = ANY(%(experiments)s::int[]) AND run_id = ANY(%(runs)s::int[])
        GROUP BY run_id, experiment_id
        """,
        {
            "experiments": int_array({one.base.experiment_id for one in moved}),
            "runs": int_array({point.run_id for one in moved for point in (one.base, one.head)}),
        },
    )
    return {(run, experiment): count for run, experiment, count in rows}


def row_of(pk: int, of_heads: Sequence[Sequence[Judged]], kernels: _KernelsOf) -> Row:
    """Return the row of what moved; the pairs of each candidate have the experiment's main metric first."""
    cells: list[Judged | None] = []
    also: list[str] = []
    for pairs in of_heads:
        telling = sorted((one for one in pairs if one.moved), key=lambda one: -one.score)
        unsure = sorted((one for one in pairs if one.undecided), key=lambda one: -one.score)
        leading = [one for one in pairs[:1] if one.moved or one.undecided]
        order = [*telling, *leading, *unsure, *pairs]
        cells.append(order[0] if order else None)
        also += [one.metric.title for one in telling[1:] if one.metric.title not in also]
    row = Row(pk, cells, also)
    if row.best is None:
        return row
    runs = row.best.base.run_id, row.best.head.run_id
    old, new = (kernels.get((run, pk)) for run in runs)
    if old is not None and new is not None:
        row.code = f"run:{runs[0]}/experiment:{pk}", f"run:{runs[1]}/experiment:{pk}"
        if old != new:
            row.facts = f"{new} kernels, was {old}"
    for one in of_heads[0]:
        ends = one.base.value, one.head.value  # None where it failed
        if one.metric.name == _BREAKS and one is not row.best and ends[0] != ends[1] and None not in ends:
            row.facts = f"graph breaks {ends[0]:.0f} → {ends[1]:.0f}"
    return row
