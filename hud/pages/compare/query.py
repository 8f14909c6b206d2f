"""Compare up to four sides: what moved, what may have another cause, what is within the noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Func, IntegerField

from hud.judging.rules.thresholds import Thresholds
from hud.models import Compilation, Environment, Experiment, Metric, Run
from hud.pages.compare import points as points_of
from hud.pages.compare.environment import Fact, differences
from hud.pages.compare.groups import COMPRESSION, Formulas, Group, groups
from hud.pages.compare.judged import UNKNOWN, Judged, Known, Place, by_draw, judge
from hud.pages.compare.points import Point
from hud.pages.compare.rows import Row, add_pairs, add_regressions
from hud.pages.compare.sides import BadSide, Side, resolve
from hud.pages.sql import fetch_tuples
from hud.pages.values import metric_place
from runner.schema.metrics import METRICS, role_of

COMPARED = sorted(name for name in METRICS if role_of(name, ()) == "headline")
VERDICTS = ("regressed", "improved", "failed", "inconclusive", "unchanged")
_FEW_KERNELS = 8  # up to as many a variant comes again, as the judge has it
_BREAKS = "graph_breaks"
_BY_METRIC = dict[int, Point]  # of one experiment on one side


@dataclass(frozen=True)
class Filters:
    """What to show, beside the sides; '' means any."""

    metric: str = ""  # else of each experiment the most telling
    suite: str = ""
    verdict: str = ""
    formulas: Formulas = ""


@dataclass
class Counts:
    """The experiments of one candidate by what became of them."""

    verdicts: Counter[str]
    reasons: Counter[str]  # of the inconclusive ones
    matched: int
    only_base: int
    only_head: int

    def to_json(self) -> dict[str, Any]:
        verdicts = {name: self.verdicts.get(name, 0) for name in VERDICTS}
        cohort = {"matched": self.matched, "only_base": self.only_base, "only_head": self.only_head}
        return {**cohort, **verdicts, "reasons": dict(self.reasons)}


@dataclass
class ComparePage:
    sides: list[Side]
    filters: Filters
    movers: list[Row]  # the most certain and largest first
    undecided: list[Row]  # moved, but something else may be the cause
    quiet: list[Row]  # within the noise, largest first
    apart: list[Row]  # on one side only, or failing on both
    counts: list[Counts]  # for each candidate
    groups: list[list[Group]]  # likewise
    facts: list[Fact]  # of the environments
    metrics: list[Metric]  # that may be chosen
    suites: list[str]

    @property
    def heads(self) -> list[Side]:
        return self.sides[1:]

    @property
    def different(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.differs]

    @property
    def shown(self) -> list[Row]:
        return [*self.movers, *self.undecided, *self.quiet, *self.apart]

    def to_rows(self) -> list[dict[str, Any]]:
        return [line for row in self.shown for line in row.to_rows(self.heads)]

    def to_json(self) -> dict[str, Any]:
        return {
            "base": self.sides[0].to_json(),
            "head": self.heads[0].to_json(),
            "counts": self.counts[0].to_json(),
            "aggregates": [group.to_json() for group in self.groups[0]],
            "heads": [
                {**side.to_json(), **counts.to_json(), "aggregates": [group.to_json() for group in found]}
                for side, counts, found in zip(self.heads, self.counts, self.groups, strict=True)
            ],
            "environment": [fact.to_json() for fact in self.different],
        }


def read(base: str, heads: Sequence[str], filters: Filters) -> ComparePage:
    """Return the comparison: 10 statements and one for each side. Raise BadSide."""
    sides = [resolve(base, is_base=True), *(resolve(text, is_base=False) for text in heads)]
    names = {*COMPARED, COMPRESSION, filters.metric}
    metrics = {metric.pk: metric for metric in Metric.objects.filter(name__in=names)}
    if filters.metric and filters.metric not in {metric.name for metric in metrics.values()}:
        raise BadSide(f"no metric is called {filters.metric[:80]!r}")
    found = [point for point in points_of.read(sides, metrics) if point.ran]
    experiments = Experiment.objects.in_bulk({point.experiment_id for point in found})
    suites = sorted({one.suite for one in experiments.values()})
    if filters.suite:
        experiments = {pk: one for pk, one in experiments.items() if one.suite == filters.suite}
    by_side: list[dict[int, _BY_METRIC]] = [{} for _side in sides]
    for point in found:
        if point.experiment_id in experiments:
            by_side[point.place].setdefault(point.experiment_id, {})[point.metric_id] = point
    places = _places(found)
    judged = _judged(by_side, experiments, metrics, filters, places)
    kernels = _apply_draws(judged)
    found_rows = (_row(one, by_side, judged, metrics, filters, kernels) for one in experiments.values())
    rows = sorted((row for row in found_rows if row), key=lambda row: row.order)
    counts = [_counts(rows, place, by_side) for place in range(len(heads))]
    add_regressions(rows)
    add_pairs(rows, places.environments)
    if filters.verdict:
        rows = [row for row in rows if any(cell and cell.verdict == filters.verdict for cell in row.cells)]
    of_groups = [
        groups(
            experiments,
            metrics,
            by_side[0],
            side,
            formulas=filters.formulas,
            elsewhere={
                pk
                for pk in by_side[0].keys() & side.keys()
                if _is_elsewhere(by_side[0][pk], side[pk], places)
            },
        )
        for side in by_side[1:]
    ]
    compared = {metric for side in by_side for points in side.values() for metric in points}
    return ComparePage(
        sides,
        filters,
        *_sections(rows),
        counts,
        of_groups,
        differences(sides, found, places.environments, places.runs),
        sorted((metrics[pk] for pk in compared), key=lambda one: metric_place("", one)),
        suites,
    )


@dataclass
class _Places:
    environments: dict[int, Environment]
    runs: dict[int, Run]
    _known: dict[tuple[int, int], Place] = field(default_factory=dict)

    def of(self, point: Point) -> Place:
        key = point.environment_id, point.run_id
        if key not in self._known:
            environment = self.environments[point.environment_id]
            card = str(environment.facts.get("gpu_uuid") or "")
            self._known[key] = Place(environment.class_key, card, self.runs[point.run_id].host_name)
        return self._known[key]


def _places(found: Iterable[Point]) -> _Places:
    environments = Environment.objects.in_bulk({point.environment_id for point in found})
    runs = Run.objects.only("host_name", "commit", "branch", "base_interpreter")
    return _Places(environments, runs.in_bulk({point.run_id for point in found}))


def _is_elsewhere(base: _BY_METRIC, head: _BY_METRIC, places: _Places) -> bool:
    return places.of(next(iter(base.values()))) != places.of(next(iter(head.values())))


_Pairs = dict[tuple[int, int], list[Judged]]  # candidate and experiment → its metrics


def _judged(
    by_side: list[dict[int, _BY_METRIC]],
    experiments: Mapping[int, Experiment],
    metrics: Mapping[int, Metric],
    filters: Filters,
    places: _Places,
) -> _Pairs:
    known = _known({point.series_id for points in by_side[0].values() for point in points.values()})
    thresholds = Thresholds.read()
    found: _Pairs = {}
    for place, side in enumerate(by_side[1:]):
        for pk in by_side[0].keys() & side.keys():
            base, head = by_side[0][pk], side[pk]
            present = {metrics[one].name for one in base.keys() | head.keys()}
            for one in base.keys() & head.keys():
                metric, two = metrics[one], (base[one], head[one])
                if (
                    metric.name != filters.metric
                    if filters.metric
                    else not _is_headline(metric.name, present)
                ):
                    continue
                measured = places.of(two[0]), places.of(two[1])
                state = known.get((two[1].series_id, measured[1].class_key), UNKNOWN)
                rule = thresholds.of(experiments[pk], metric).rule
                found.setdefault((place, pk), []).append(judge(metric, rule, two, measured, state))
    return found


def _known(series: Collection[int]) -> dict[tuple[int, str], Known]:
    """Return what is known of each series and class of environments: 1 statement."""
    rows = fetch_tuples(
        """
        SELECT series_id, class_key, noise, points,
            ARRAY(SELECT jsonb_array_elements_text(coalesce(level->'cards', '[]')))
        FROM hud_seriesstate WHERE series_id = ANY(%(series)s)
        """,
        {"series": list(series)},
    )
    return {(pk, class_key): Known(noise, points, cards) for pk, class_key, noise, points, cards in rows}


def _is_headline(name: str, present: Collection[str]) -> bool:
    return role_of(name, present) == "headline"


@dataclass
class _Kernels:
    """Of an experiment in a run: the variants of its compilations, and how many kernels they have."""

    variants: list[str] = field(default_factory=list)
    count: int = 0


def _apply_draws(judged: _Pairs) -> dict[tuple[int, int], _Kernels]:
    """Take the autotuner's draw out of the verdicts; return the kernels of all moved points by run and
    experiment: 1 statement."""
    moved = {(pk, run) for (_place, pk), pairs in judged.items() for run in _moved_runs(pairs)}
    rows = (
        Compilation.objects.filter(
            experiment__in={pk for pk, _run in moved}, run__in={run for _pk, run in moved}
        )
        .annotate(count=Func("kernels", function="cardinality", output_field=IntegerField()))
        .values_list("run_id", "experiment_id", "variant", "count")
    )
    kernels: dict[tuple[int, int], _Kernels] = {}
    for run, experiment, variant, count in rows:
        of_run = kernels.setdefault((run, experiment), _Kernels())
        of_run.variants.append(variant if count <= _FEW_KERNELS else "")
        of_run.count = max(of_run.count, count)
    nothing = _Kernels()
    for (_place, pk), pairs in judged.items():
        for index, one in enumerate(pairs):
            base = kernels.get((one.base.run_id, pk), nothing).variants
            pairs[index] = by_draw(one, base, kernels.get((one.head.run_id, pk), nothing).variants)
    return kernels


def _moved_runs(pairs: Iterable[Judged]) -> Iterable[int]:
    return {run for one in pairs if one.moved or one.undecided for run in (one.base.run_id, one.head.run_id)}


def _row(  # noqa: PLR0917 — of one caller
    experiment: Experiment,
    by_side: list[dict[int, _BY_METRIC]],
    judged: _Pairs,
    metrics: Mapping[int, Metric],
    filters: Filters,
    kernels: Mapping[tuple[int, int], _Kernels],
) -> Row | None:
    pk = experiment.pk

    def place_of(metric: Metric) -> tuple[int, str]:
        return metric_place(experiment.suite, metric)

    cells: list[Judged | None] = []
    also: list[str] = []
    for place in range(len(by_side) - 1):
        pairs = sorted(judged.get((place, pk), ()), key=lambda one: place_of(one.metric))
        telling = sorted((one for one in pairs if one.moved), key=lambda one: -one.score)
        unsure = sorted((one for one in pairs if one.undecided), key=lambda one: -one.score)
        leading = [one for one in pairs[:1] if one.moved or one.undecided]
        order = [*telling, *leading, *unsure, *pairs]
        cells.append(order[0] if order else None)
        also += [one.metric.title for one in telling[1:] if one.metric.title not in also]
    row = Row(experiment, cells, also)
    if row.best is None:
        points = [
            point
            for side in by_side
            for point in side.get(pk, {}).values()
            if not filters.metric or metrics[point.metric_id].name == filters.metric
        ]
        if not points:
            return None
        row.alone = min(points, key=lambda point: (place_of(metrics[point.metric_id]), point.place))
        row.alone_metric = metrics[row.alone.metric_id]
        return row
    runs = row.best.base.run_id, row.best.head.run_id
    old, new = (kernels.get((run, pk)) for run in runs)
    if old and new:
        row.code = f"run:{runs[0]}/experiment:{pk}", f"run:{runs[1]}/experiment:{pk}"
        if old.count != new.count:
            row.facts = f"{new.count} kernels, was {old.count}"
    for one in judged.get((0, pk), ()):
        if one.metric.name == _BREAKS and one.base.value != one.head.value and one is not row.best:
            row.facts = f"graph breaks {one.base.value:.0f} → {one.head.value:.0f}"
    return row


def _sections(rows: Iterable[Row]) -> tuple[list[Row], list[Row], list[Row], list[Row]]:
    """Return movers, undecided, quiet ones and those that are not compared."""
    found: tuple[list[Row], ...] = ([], [], [], [])
    for row in rows:
        best = row.best
        if best is None or best.reason == "both_fail":
            found[3].append(row)
        else:
            found[0 if best.moved else 1 if best.undecided else 2].append(row)
    return found[0], found[1], found[2], found[3]


def _counts(rows: Iterable[Row], place: int, by_side: list[dict[int, _BY_METRIC]]) -> Counts:
    cells = [cell for row in rows if (cell := row.cells[place])]
    base, head = by_side[0].keys(), by_side[place + 1].keys()
    return Counts(
        Counter(cell.verdict for cell in cells if cell.reason != "both_fail"),
        Counter(cell.reason for cell in cells if cell.undecided),
        len(base & head),
        len(base - head),
        len(head - base),
    )
