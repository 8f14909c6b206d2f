"""A row of a comparison: an experiment on all sides, its regression, and how to rerun it in pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hud.judging.regressions.states import ACTIVE
from hud.models import Environment, Experiment, Metric, Regression
from hud.pages.compare.judged import Judged
from hud.pages.compare.points import Point, add_words
from hud.pages.compare.sides import Side
from hud.pages.hosts.pairs import Builds, Rerun
from hud.pages.suite.query import identity


@dataclass
class Row:
    """An experiment on all sides. `cells` has the most telling metric for each candidate, None where a side
    lacks it; then `alone` has the point of the side that has one. `complete` adds the rest."""

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

    @cached_property
    def best(self) -> Judged | None:
        there = [cell for cell in self.cells if cell]
        return max(there, key=lambda cell: (cell.moved, cell.undecided, cell.score), default=None)

    @property
    def about(self) -> str:
        """Return what tells experiments of one title apart."""
        one = self.experiment
        mode = "" if one.mode == "inference" else one.mode
        return " · ".join(filter(None, (one.suite, one.backend, one.dtype, mode)))

    @property
    def only(self) -> str:
        return "" if self.alone is None else "base" if self.alone.place == 0 else "head"

    @property
    def score(self) -> float:
        return self.best.score if self.best else 0.0

    def to_rows(self, heads: Sequence[Side]) -> list[dict[str, Any]]:
        about = identity(self.experiment)
        state = {"regression": self.regression.pk, "state": self.regression.state} if self.regression else {}
        if self.alone is not None and self.alone_metric is not None:
            metric, point = self.alone_metric, self.alone
            value = {"metric": metric.name, "unit": metric.unit, self.only: point.value, "reason": point.note}
            verdict = "not_run" if self.only == "base" else "new"
            return [{**about, **value, "verdict": verdict, "only": self.only, **state}]
        return [
            {**about, "side": side.text, **cell.to_row(), **state}
            for side, cell in zip(heads, self.cells, strict=True)
            if cell
        ]


def complete(rows: Sequence[Row], environments: Mapping[int, Environment]) -> None:
    """Add the experiments of these rows, their regressions, forms, and the reasons of what has no value or
    failed: 4 statements at most."""
    experiments = Experiment.objects.in_bulk({row.pk for row in rows})
    for row in rows:
        row.experiment = experiments[row.pk]
    _add_regressions(rows)
    _add_reruns(rows, environments)
    alone = [row.alone for row in rows if row.alone]
    add_words([*alone, *(cell.head for row in rows for cell in row.cells if cell and not cell.head.good)])


def _add_regressions(rows: Iterable[Row]) -> None:
    """Add the regression that each moved row belongs to: 1 statement."""
    moved = {
        best.head.series_id: row for row in rows if (best := row.best) and (best.moved or best.undecided)
    }
    active = Regression.objects.filter(series__in=moved, state__in=ACTIVE).only("series_id", "state")
    for one in active.order_by("pk"):
        moved[one.series_id].regression = one


def _add_reruns(rows: Iterable[Row], environments: Mapping[int, Environment]) -> None:
    """Add how to compare both sides' versions of torch again: 1 statement."""
    builds = Builds()
    for row in rows:
        if (best := row.best) and (best.moved or best.undecided):
            base, head = (environments[point.environment_id] for point in (best.base, best.head))
            torches = (base.torch, base.torch_git), (head.torch, head.torch_git)
            row.rerun = builds.pairs(row.experiment, best.metric.name, *torches)
