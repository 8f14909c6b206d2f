"""A row of a comparison: an experiment on all sides, its regression, and how to rerun it in pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.judging.regressions.states import ACTIVE
from hud.judging.rules.thresholds import Thresholds, default_rule
from hud.judging.verdict import Rule
from hud.models import Experiment, Metric, Regression
from hud.pages.compare.environment import Places
from hud.pages.compare.judged import Judged, add_doubts, judge
from hud.pages.compare.points import ComparedPoint
from hud.pages.compare.sides import Side
from hud.pages.hosts.pairs import Builds, Rerun
from hud.pages.suite.query import identity
from hud.sql import fetch_models, fetch_tuples, int_array
from runner.schema.metrics import role_of

Key = tuple[str, str, str, str, str]  # suite, backend, mode, dtype, arch or device
Points = dict[str, ComparedPoint]  # by metric
_BREAKS = "graph_breaks"


@dataclass(slots=True)
class Row:
    """An experiment on all sides. `pairs` has for each candidate what is compared, the suite's main metrics
    first; `cells` the most telling of them, None where a side lacks it. `complete` adds the last two."""

    experiment: Experiment
    points: list[Points]  # of each side
    pairs: list[list[Judged]] = field(default_factory=list)
    cells: list[Judged | None] = field(default_factory=list)
    best: Judged | None = None  # of the cells
    also: list[str] = field(default_factory=list)  # titles of further metrics that moved
    alone: tuple[int, Metric, ComparedPoint] | None = None  # without cells: the main metric and its side
    facts: str = ""
    code: tuple[str, str] | None = None  # sides of the page that compares kernels
    regression: Regression | None = None
    with_arch: bool = False  # rows of several arches are shown
    rerun: Rerun | None = None  # of what moved, in pairs where a host can

    @property
    def pk(self) -> int:
        return self.experiment.pk

    @property
    def arch(self) -> str:
        return self.experiment.arch or self.experiment.device

    @property
    def group(self) -> Key:
        one = self.experiment
        return one.suite, one.backend, one.mode, one.dtype, self.arch

    @property
    def only(self) -> str:
        return "" if self.alone is None else "head" if self.alone[0] else "base"

    @property
    def about(self) -> str:
        """Return what tells experiments of one title apart."""
        one = self.experiment
        mode = "" if one.mode == "inference" else one.mode
        arch = self.arch if self.with_arch else ""
        return " · ".join(filter(None, (one.suite, one.backend, one.dtype, mode, arch)))

    @property
    def section(self) -> int:
        """Return 0 for a mover, 1 undecided, 2 within the noise, 3 not compared."""
        if self.best is None or self.best.both_fail:
            return 3
        return 0 if self.best.moved else 1 if self.best.undecided else 2

    def choose(self) -> None:
        """Choose the cells, now that all pairs are judged."""
        for pairs in self.pairs:
            telling = sorted((one for one in pairs if one.moved), key=lambda one: -one.score)
            self.cells.append(telling[0] if telling else _unmoved(pairs))
            self.also += [one.metric.title for one in telling[1:] if one.metric.title not in self.also]
        cells = [cell for cell in self.cells if cell]
        self.best = max(cells, key=lambda cell: (cell.moved, cell.undecided, cell.score), default=None)

    def to_rows(self, heads: Sequence[Side]) -> list[dict[str, Any]]:
        """Return a row for each candidate."""
        about = identity(self.experiment)
        state = {"regression": self.regression.pk, "state": self.regression.state} if self.regression else {}
        if self.alone:
            _side, metric, point = self.alone
            value = {"metric": metric.name, "unit": metric.unit, self.only: point.value, "reason": point.note}
            verdict = "not_run" if self.only == "base" else "new"
            return [{**about, **value, "verdict": verdict, "only": self.only, **state}]
        return [
            {**about, "side": side.text, "stream": side.stream, **cell.to_row(), **state}
            for side, cell in zip(heads, self.cells, strict=True)
            if cell
        ]


def _unmoved(pairs: Sequence[Judged]) -> Judged | None:
    """Return the pair to show where none moved: the first with numbers, unless the main one fails on both
    sides or another one is undecided."""
    if not pairs or pairs[0].both_fail:
        return pairs[0] if pairs else None
    shown = next((one for one in pairs if one.factor is not None), pairs[0])
    undecided = [shown] if shown.undecided else [one for one in pairs if one.undecided]
    return max(undecided, key=lambda one: one.score, default=shown)


def read(
    experiments: Iterable[Experiment],
    points: Sequence[Mapping[int, Points]],
    orders: Mapping[str, Sequence[Metric]],
    metric: str,
    places: Places,
) -> list[Row]:
    """Return a row for each experiment, with the points of each side by experiment and metric, judged by
    `metric` or if it is '' by its headline metrics; `orders` has the metrics of each suite: 3 statements."""
    thresholds = Thresholds.read()
    headlines: dict[tuple[str, frozenset[str], frozenset[str]], list[Metric]] = {}
    rules: dict[str, Rule] = {}  # where no operator says anything
    rows = []
    for experiment in experiments:
        metrics = orders[experiment.suite]
        row = Row(experiment, [of_side.get(experiment.pk, {}) for of_side in points])
        base = row.points[0]
        for head in row.points[1:]:
            key = experiment.suite, frozenset(base), frozenset(head)
            if key not in headlines:
                both, either = key[1] & key[2], key[1] | key[2]
                headlines[key] = [
                    one
                    for one in metrics
                    if one.name in both
                    and (one.name == metric if metric else role_of(one.name, either) == "headline")
                ]
            pairs = []
            for one in headlines[key]:
                name = one.name
                if thresholds.rows:
                    rule = thresholds.of(experiment, one).rule
                else:
                    rule = rules.get(name) or rules.setdefault(name, default_rule(one))
                pairs.append(judge(one, rule, base[name], head[name]))
            row.pairs.append(pairs)
        rows.append(row)
    add_doubts([one for row in rows for pairs in row.pairs for one in pairs], places)
    for row in rows:
        row.choose()
        if row.best is None:
            row.alone = next(
                (
                    (side, one, of_side[one.name])
                    for one in orders[row.experiment.suite]
                    for side, of_side in enumerate(row.points)
                    if one.name in of_side and metric in ("", one.name)
                ),
                None,
            )
    _add_kernels(rows)
    return rows


def _add_kernels(rows: Sequence[Row]) -> None:
    """Add what changed in the compilations of the points that moved, where they are known: 1 statement."""
    changed = [(row, row.best) for row in rows if row.best and row.best.changed]
    found = fetch_tuples(
        """
        SELECT run_id, experiment_id, max(cardinality(kernels)) FROM hud_compilation
        WHERE experiment_id = ANY(%(experiments)s::int[]) AND run_id = ANY(%(runs)s::int[])
        GROUP BY run_id, experiment_id
        """,
        {
            "experiments": int_array(row.pk for row, _best in changed),
            "runs": int_array({point.run_id for _row, best in changed for point in (best.base, best.head)}),
        },
    )
    kernels = {(run, experiment): count for run, experiment, count in found}
    for row, best in changed:
        runs = best.base.run_id, best.head.run_id
        before, after = (kernels.get((run, row.pk)) for run in runs)
        if before is not None and after is not None:
            row.code = f"run:{runs[0]}/experiment:{row.pk}", f"run:{runs[1]}/experiment:{row.pk}"
            if before != after:
                row.facts = f"{after} kernels, was {before}"
        for one in row.pairs[0]:
            ends = one.base.value, one.head.value  # None where it failed
            if one.metric.name == _BREAKS and one is not best and one.changed and None not in ends:
                row.facts = f"graph breaks {ends[0]:.0f} → {ends[1]:.0f}"


def add_regressions(rows: Iterable[Row]) -> None:
    """Add the regression that each row belongs to: 1 statement."""
    changed = {row.best.head.series_id: row for row in rows if row.best and row.best.changed}
    active = "WHERE series_id = ANY(%(series)s::int[]) AND state = ANY(%(active)s) ORDER BY id"
    for one in fetch_models(Regression, active, {"series": int_array(changed), "active": list(ACTIVE)}):
        changed[one.series_id].regression = one


def complete(rows: Sequence[Row], places: Places) -> None:
    """Add the regressions, and how to compare both sides' versions of torch again: 2 statements, 1 where
    nothing moved."""
    add_regressions(rows)
    changed = [(row, row.best) for row in rows if row.best and row.best.changed]
    if not changed:
        return
    builds = Builds()
    for row, best in changed:
        environments = (places.environments[point.environment_id] for point in (best.base, best.head))
        base, head = ((one.torch, one.torch_git) for one in environments)
        row.rerun = builds.pairs(row.experiment, best.metric.name, base, head)
