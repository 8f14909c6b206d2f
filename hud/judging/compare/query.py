"""Compare up to four sides: what moved, what may have another cause, what is within the noise."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from typing import Any

import numpy as np
import orjson
from django.db.models import Max

from hud.judging.compare import groups as groups_of
from hud.judging.compare import judged
from hud.judging.compare.differences import Fact, differences
from hud.judging.compare.groups import COMPRESSION, Axis, CohortGroup, Totals
from hud.judging.compare.judged import ComparedRow, Sections
from hud.judging.compare.points import Cohort, Places, Points, add_details
from hud.judging.compare.screen import Pairs, known_failures, screen
from hud.judging.compare.sides import MOST_SIDES, SIDE, ComparedSide, resolve
from hud.judging.regressions.read import Counts as Waiting
from hud.judging.regressions.read import Scope, count
from hud.models import Compilation, Experiment, Metric, Regression, Run, Stream
from hud.points.nights import Night
from hud.points.read import metric_place
from hud.points.sides import BadSide
from hud.runs.places import Builds
from hud.sql import Bools, by_id, fetch_models, fetch_tuples, int_array
from hud.states.regressions import ACTIVE
from hud.tables.table import IDENTITY
from runner.schema.metrics import METRICS, role_of

_HEADLINES = sorted(name for name in METRICS if role_of(name, ()) == "headline")
VERDICTS = ("regressed", "improved", "failed", "inconclusive", "unchanged")
HEADER = (*IDENTITY.names, "side", "stream", *judged.COLUMNS.names, "head_id")


@dataclass(frozen=True)
class Filters:
    """The results to compare; '' means any."""

    metric: str = ""  # else of each experiment the most telling
    suite: str = ""
    verdict: str = ""
    arch: str = ""
    mode: str = ""
    dtype: str = ""

    @property
    def subject(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("arch", "mode", "dtype")}


@dataclass
class Candidate:
    """A side against the baseline: its experiments by what became of them, and the numbers over all of them
    and of each suite and backend."""

    side: ComparedSide
    verdicts: Counter[str]
    reasons: Counter[str]  # of the inconclusive ones
    totals: Totals
    groups: list[CohortGroup]
    across: list[str]  # what the comparison is across: of `hud.points.sides.FILTERS`
    axes: Callable[[], list[Axis]]

    @property
    def telling(self) -> int:
        """Return how many groups moved."""
        return sum(group.is_telling for group in self.groups)

    def counts_json(self) -> dict[str, Any]:
        counts = {name: self.totals.counts[name] for name in ("matched", "only_base", "only_head")}
        verdicts = {name: self.verdicts[name] for name in VERDICTS}
        return {**counts, **verdicts, "reasons": dict(self.reasons)}

    def to_json(self) -> dict[str, Any]:
        aggregates = [group.to_json() for group in self.groups]
        totals = {"totals": self.totals.to_json(), "aggregates": aggregates}
        return {**SIDE.row(self.side), **self.counts_json(), **totals}


@dataclass
class ComparePage:
    stream: Stream  # in which dates, branches and commits are looked up
    base: ComparedSide
    candidates: list[Candidate]
    filters: Filters
    subject: dict[str, str]  # that all sides have
    rows: Sections
    facts: list[Fact]  # of the environments
    metrics: list[Metric]  # that may be chosen
    suites: list[str]
    waiting: Waiting  # regressions between the baseline and the first candidate
    places: Places

    @property
    def heads(self) -> list[ComparedSide]:
        return [candidate.side for candidate in self.candidates]

    @property
    def sides(self) -> list[ComparedSide]:
        return [self.base, *self.heads]

    @property
    def across(self) -> list[str]:
        return self.candidates[0].across

    @property
    def different(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.differs]

    @cached_property
    def reach(self) -> float:
        """Return the largest change to draw for any candidate, at least 2 %, at most 100 %."""
        cells = [cell for row in self.rows.compared for cell in row.cells if cell]
        return min(max([0.02, *(abs(cell.change) for cell in cells if cell.change is not None)]), 1.0)

    def to_rows(self) -> list[dict[str, Any]]:
        rows = self.rows.every
        add_regressions(rows)
        columns = ", ".join(f'"{name}"' for name in Experiment.IDENTITY)
        identities = fetch_tuples(  # without making models
            f"SELECT id, {columns} FROM hud_experiment WHERE id = ANY(%(ids)s::int[])",  # noqa: S608 — constants  # nosec B608
            {"ids": int_array(row.pk for row in rows)},
        )
        about = {pk: dict(zip(IDENTITY.names, (pk, *parts), strict=True)) for pk, *parts in identities}
        for row in about.values():
            row["knobs"] = orjson.loads(row["knobs"])
        return [line for row in rows for line in row.to_rows(self.heads, about[row.pk])]

    def to_json(self) -> dict[str, Any]:
        heads = [candidate.to_json() for candidate in self.candidates]
        return {
            "stream": self.stream.name,
            "across": self.across,
            "base": SIDE.row(self.base),
            "head": SIDE.row(self.heads[0]),
            "counts": {**self.candidates[0].counts_json(), **self.waiting.to_json()},
            "totals": heads[0]["totals"],
            "aggregates": heads[0]["aggregates"],
            "heads": heads,
            "environment": [fact.to_json() for fact in self.different],
        }


def read(base: str, heads: Sequence[str], filters: Filters, stream: Stream) -> ComparePage:
    """Return the comparison: 9 statements, two for each side and one for each candidate, more for a night or
    failures. Raise BadSide."""
    if len(heads) >= MOST_SIDES:
        raise BadSide(f"at most {MOST_SIDES} sides can be compared", 400)
    sides = [
        resolve(text, stream, filters.subject, is_base=index == 0)
        for index, text in enumerate([base, *heads])
    ]
    times = [side.newest.order_time for side in sides[:2]]
    named = [*_HEADLINES, COMPRESSION, filters.metric]
    metrics = _compared(named)
    if filters.metric and filters.metric not in {metric.name for metric in metrics}:
        raise BadSide(f"no metric is called {filters.metric[:80]!r}")
    points = [Points.read(side, [metric.pk for metric in metrics]) for side in sides]
    measured = {pk for side_points in points for pk in np.unique(side_points.table.metric).tolist()}
    metrics = [metric for metric in metrics if metric.name in named or metric.pk in measured]
    subject = {
        kind: chosen if len(names) == 1 else ""
        for kind, value in filters.subject.items()
        for names in [{side.subject.get(kind, value) for side in sides}]
        for chosen in names
    }
    cohort = Cohort.read(points, metrics, {**subject, "suite": filters.suite})
    places = Places.read(points)
    known = [known_failures(cohort, index, places) for index in range(1, len(sides))]
    pairs = [screen(cohort, index, filters.metric) for index in range(1, len(sides))]
    rows = _rows(cohort, places, filters.metric, known, pairs)
    several = len({key.arch for key, _experiments in cohort.members}) > 1
    sections: list[list[ComparedRow]] = [[], [], [], []]
    for row in rows:
        row.with_arch = several
        if not filters.verdict or any(filters.verdict in row.words(index) for index in range(len(heads))):
            sections[row.section].append(row)
    movers, undecided, quiet = (sorted(section, key=lambda row: -row.score) for section in sections[:3])
    there = [any(table.there[:, at].any() for table in cohort.sides) for at in range(len(cohort.metrics))]
    candidates = []
    for index, side in enumerate(sides[1:], start=1):
        groups = groups_of.read(cohort, index, places, known[index - 1])
        cells = [cell for row in rows if (cell := row.cells[index - 1])]
        words = [row.words(index - 1) for row in rows]
        verdicts = Counter(word for of_row in words for word in of_row)
        verdicts["both"] = sum({"regressed", "improved"} <= of_row for of_row in words)
        reasons = Counter(cell.reason for cell in cells if cell.undecided)
        totals = groups_of.totals(cohort, index, groups, known[index - 1])
        axes = partial(groups_of.axes, cohort, index, totals, pairs[index - 1].noise)
        candidates.append(Candidate(side, verdicts, reasons, totals, groups, cohort.across, axes))
    return ComparePage(
        stream,
        sides[0],
        candidates,
        filters,
        subject,
        Sections(movers, undecided, quiet, sections[3]),
        differences(cohort.sides, places),
        sorted(compress(cohort.metrics, there), key=lambda one: metric_place("", one)),
        cohort.suites,
        count(Scope(stream, **subject, base=times[0], head=times[1])),
        places,
    )


def _compared(named: Collection[str]) -> list[Metric]:
    """Return the metrics of these names, and those that may be the headline of an experiment: 1 statement."""
    stored = fetch_models(Metric, "WHERE name = ANY(%(names)s) OR direction <> 'none'", {"names": [*named]})
    return [metric for metric in stored if metric.name in named or role_of(metric.name, ()) == "headline"]


def between(
    base: Night, head: Night, stream: Stream, experiments: Collection[int], names: Collection[str] = ()
) -> Callable[[str], list[ComparedRow]]:
    """Read what two nights measured of these experiments, by default of all metrics that `read` compares: 7
    statements. Return a function that judges them by one of the metrics, or if that is '' by all headline
    ones, as `read` does: 2 statements."""
    runs = by_id(Run, [max(base.runs), max(head.runs)])
    sides = []
    for night in (base, head):
        run = runs[max(night.runs)]
        run.order_time, run.stream = night.time, stream
        sides.append(ComparedSide(night.side, "night", night.side, run, night.runs, night.began))
    metrics = [one for one in _compared(names or _HEADLINES) if not names or one.name in names]
    points = [Points.read(side, [metric.pk for metric in metrics], experiments) for side in sides]
    cohort = Cohort.read(points, metrics, dict.fromkeys(("suite", "arch", "mode", "dtype"), ""))
    places = Places.read(points)
    known = [np.zeros(cohort.ids.size, bool)]

    def rows_of(metric: str) -> list[ComparedRow]:
        return _rows(cohort, places, metric, known, [screen(cohort, 1, metric)])

    return rows_of


def _rows(
    cohort: Cohort,
    places: Places,
    metric: str,
    known: Sequence[Bools],
    pairs: Sequence[Pairs],
) -> list[ComparedRow]:
    """Return a row for each experiment that is judged by the metric, or if it is '' by any, in the order of
    their names: 1 statement, none where nothing moved. `known` tells of each candidate which failures are no
    news."""
    cells = zip(*(of_head.cells(cohort, side) for side, of_head in enumerate(pairs, start=1)), strict=True)
    heads = cohort.sides[1:]
    rows = [
        ComparedRow(pk, list(of_heads), [head.own.get(pk, pk) for head in heads])
        for pk, of_heads in zip(cohort.ids.tolist(), cells, strict=True)
    ]
    for row in rows:
        row.choose_best()
    _judge_moved(rows, cohort, pairs, places, known)
    _add_alone(rows, cohort, metric)
    return [row for row in rows if row.best or row.alone]


def _judge_moved(
    rows: Sequence[ComparedRow],
    cohort: Cohort,
    pairs: Sequence[Pairs],
    places: Places,
    known: Sequence[Bools],
) -> None:
    """Judge what may have moved, in the light of its cards and compilations: 1 statement."""
    moved: dict[int, list[list[judged.JudgedCell]]] = {}
    details = []
    for side, of_head in enumerate(pairs, start=1):
        at = np.nonzero(of_head.compared & ~of_head.quiet)
        order = np.lexsort((cohort.order[at], at[1] != of_head.shown[at[0]], at[0]))
        lines, columns = (axis[order] for axis in at)
        ends = (cohort.sides[end].points(lines, columns) for end in (0, side))
        details += [(side, *row) for row in zip(lines.tolist(), columns.tolist(), *ends, strict=True)]
    add_details(point for *_at, base, head in details for point in (base, head))
    for side, line, column, base, head in details:
        of_head = pairs[side - 1]
        if line not in moved:
            moved[line] = [
                [cell] if cell and pair.quiet[line, pair.shown[line]] else []
                for pair, cell in zip(pairs, rows[line].cells, strict=True)
            ]
        noise = float(of_head.noise[line, column])
        points = int(of_head.points[line, column])
        measured = places.of(base.environment_id, base.run_id), places.of(head.environment_id, head.run_id)
        metric, rule = cohort.metrics[column], cohort.rule(line, column)
        cell = judged.judge(
            metric,
            rule,
            (base, head),
            measured,
            noise=noise,
            points=points,
            across=cohort.across,
            of_judge=int(of_head.of_judge[line, column]),
            factor=float(of_head.factor[line, column]),
        )
        if cell.verdict == "failed" and known[side - 1][line]:
            cell.reason = judged.KNOWN_FAILURE
        moved[line][side - 1].append(cell)
    for line, of_heads in moved.items():
        rows[line].choose(of_heads)


def _add_alone(rows: Sequence[ComparedRow], cohort: Cohort, metric: str) -> None:
    """Add the main metric of what is not on both sides."""
    lines = np.array([line for line, row in enumerate(rows) if row.best is None], int)
    chosen, none = [metric in ("", known.name) for known in cohort.metrics], len(cohort.metrics)
    orders = [np.where(side.there[lines] & chosen, cohort.order[lines], none) for side in cohort.sides]
    first = np.hstack(orders).argmin(axis=1)
    for side, (points, order) in enumerate(zip(cohort.sides, orders, strict=True)):
        own = np.flatnonzero((first // none == side) & (order < none).any(axis=1))
        columns = first[own] % none
        points_there = points.points(lines[own], columns)
        for line, column, point in zip(lines[own].tolist(), columns.tolist(), points_there, strict=True):
            rows[line].alone = side, cohort.metrics[column], point


def add_regressions(rows: Sequence[ComparedRow]) -> None:
    """Add the regression of each row that moved, and the reasons of what has no value or failed: 2
    statements."""
    moved = {row.best.head.series_id: row for row in rows if row.best and row.best.changed}
    active = "WHERE series_id = ANY(%(series)s::int[]) AND state = ANY(%(active)s) ORDER BY id"
    for regression in fetch_models(Regression, active, {"series": int_array(moved), "active": list(ACTIVE)}):
        moved[regression.series_id].regression = regression
    alone = [row.alone[2] for row in rows if row.alone]
    add_details([*alone, *(cell.head for row in rows for cell in row.cells if cell and not cell.head.good)])


def complete(rows: Sequence[ComparedRow], places: Places, stream: str) -> None:
    """Add what a page shows beside: experiments, kernels, and how to compare both sides' versions of torch
    again: 5 statements, 3 where nothing moved."""
    add_regressions(rows)
    experiments = by_id(Experiment, [row.pk for row in rows])
    for row in rows:
        row.experiment, row.stream = experiments[row.pk], stream
    changed = [(row, row.best) for row in rows if row.best and row.best.changed]
    if not changed:
        return
    ends = [((best.base.run_id, row.pk), (best.head.run_id, row.of_best)) for row, best in changed]
    points = [point for both in ends for point in both]
    runs, of_points = (set(part) for part in zip(*points, strict=True))
    compiled = Compilation.objects.filter(run__in=runs, experiment__in=of_points)
    counted = compiled.values_list("run", "experiment").annotate(Max("kernels__len"))
    builds, kernels = Builds(), {(run, experiment): count for run, experiment, count in counted}
    for (row, best), of_row in zip(changed, ends, strict=True):
        environments = (places.environments[point.environment_id] for point in (best.base, best.head))
        base, head = ((environment.torch, environment.torch_git) for environment in environments)
        if row.of_best == row.pk:
            row.rerun = builds.pairs(row.experiment, best.metric.name, base, head)
        before, after = map(kernels.get, of_row)
        if before is not None and after is not None:
            first, second = (f"run:{run}/experiment:{experiment}" for run, experiment in of_row)
            row.code = first, second
            if before != after and not row.facts:
                row.facts = f"{after} kernels, was {before}"
