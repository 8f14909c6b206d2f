"""The experiments of a comparison, the points of each side, which are of each series its newest in the side's
runs, and where these were measured.

A comparison has thousands of points of which a page shows a few, so that only these become objects. Reading a
side of 4,000 points takes 1.4 ms of CPU as arrays and 8.3 ms as dataclasses; the whole page may take 25.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hud.judging.compare.sides import ComparedSide
from hud.judging.rules.thresholds import Thresholds, default_rule
from hud.judging.verdict import Rule
from hud.models import NEVER_RAN, STATUS_CODES, STATUS_NAMES, VERDICTS, Environment, Experiment, Metric, Run
from hud.points.read import metric_place
from hud.points.sides import EXPERIMENT_KINDS
from hud.sql import Bools, Floats, Ints, by_id, fetch_columns, fetch_tuples, int_array

SUSPECT = len(VERDICTS)  # in place of a verdict's code
_COLUMNS = {  # of `Points`
    "experiment": "experiment_id",
    "metric": "metric_id",
    "series": "series_id",
    "run": "run_id",
    "environment": "environment_id",
    "value": "coalesce(value, 'NaN')",
    "status": "status",
    # compilations that gave a value
    "count": """CASE WHEN "values" IS NULL THEN (value IS NOT NULL)::int
        ELSE cardinality(array_remove("values", NULL)) END""",
    "noise": "coalesce(noise, 'NaN')",
    "level_points": "coalesce(level_points, 0)",  # over how many the noise is known
    "undecided": "(quality IS NOT NULL)::int",  # the value may not decide
    # what the judge says of it against its level, which has the last two
    "verdict": f"CASE verdict_reason WHEN 'suspect' THEN {SUSPECT} ELSE coalesce(verdict, 0) END",
    "level": "coalesce(level, 'NaN')",
    "factor": "coalesce(factor, 'NaN')",
}
_FLOATS = {"value", "noise", "level", "factor"}
_KINDS = [(name, "f8" if name in _FLOATS else "?" if name == "undecided" else "i8") for name in _COLUMNS]
_OF_SERIES = """p.series_id, s.experiment_id, s.metric_id, p.run_id, p.environment_id, p.value, p.status,
    p."values", noise, level_points, p.quality, verdict, verdict_reason, level, factor"""
_RAN = """metric_id = ANY(%(metrics)s) AND (value IS NOT NULL OR status <> ALL(%(never_ran)s))
    AND (%(environments)s::int[] IS NULL OR environment_id = ANY(%(environments)s::int[]))
    AND (%(experiments)s::int[] IS NULL OR experiment_id = ANY(%(experiments)s::int[]))"""
_NEWEST_FIRST = "order_time DESC, run_id DESC, environment_id DESC"
_IN_RUNS = f"""{_OF_SERIES} FROM hud_point p JOIN hud_series s ON s.id = p.series_id
    WHERE run_id = ANY(%(runs)s::int[]) AND {_RAN}"""
_ALL_OF_RUNS = f"(SELECT {_IN_RUNS}) point"  # at two thirds of what the newest of each series take
_OF_RUNS = f"""(
    SELECT DISTINCT ON (p.series_id) {_IN_RUNS} ORDER BY p.series_id, {_NEWEST_FIRST}) point
"""
_OF_EXPERIMENTS = f"""(
    SELECT DISTINCT ON (p.series_id) {_OF_SERIES} FROM unnest(%(experiments)s::int[]) AS own(id)
    CROSS JOIN LATERAL (SELECT * FROM hud_series WHERE experiment_id = own.id OFFSET 0) s
    CROSS JOIN LATERAL (
        SELECT * FROM hud_point WHERE run_id = ANY(%(runs)s::int[]) AND series_id = s.id OFFSET 0) p
    WHERE {_RAN} ORDER BY p.series_id, {_NEWEST_FIRST}) point
"""  # noqa: S608  # nosec B608
# A side of an A/B run was not judged: its noise is that of the series' newest point.
_OF_AB_SIDE = f"""(
    SELECT {_OF_SERIES} FROM hud_sidepoint p JOIN hud_series s ON s.id = p.series_id
    LEFT JOIN LATERAL (
        SELECT noise, level_points, NULL::int verdict, NULL verdict_reason, NULL::float level,
            NULL::float factor
        FROM hud_point WHERE series_id = s.id AND noise IS NOT NULL ORDER BY order_time DESC LIMIT 1
    ) judged ON true
    WHERE run_id = ANY(%(runs)s::int[]) AND side = %(ab_side)s AND {_RAN}) point
"""  # noqa: S608  # nosec B608


class GroupKey(NamedTuple):
    """The facts that the experiments of a group share."""

    suite: str
    backend: str
    mode: str
    dtype: str
    arch: str  # else the device


@dataclass(slots=True)
class ComparedPoint:
    """A point that is judged or shown. `add_details` adds the last six."""

    series_id: int
    run_id: int
    environment_id: int
    value: float | None
    status: str
    compilations: int  # that gave a number
    ab_side: int | None = None
    values: Sequence[float] = ()  # of each of these
    variants: Sequence[str | None] = ()  # choices of the compilations, where known
    cards: list[str] | None = None  # of its series' level
    code: str | None = None
    note: str | None = None
    quality: str | None = None  # why it may not decide

    @property
    def good(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Points:
    """The points of a side that ran, one element each of `table`, which has `_COLUMNS`. A missing value or
    noise is NaN. In a cohort it has a row for each experiment and a column for each metric; ids are 0 without
    a point."""

    side: ComparedSide = field(repr=False)
    table: np.recarray[Any, Any]
    own: Mapping[int, int] = field(default_factory=dict)  # cohort's → its experiment, where another

    @classmethod
    def read(
        cls, side: ComparedSide, metrics: Collection[int], experiments: Collection[int] | None = None
    ) -> Points:
        """Return the points of these metrics, and experiments if given: 1 statement, 2 of a run with several
        points of a series."""
        statement = _ALL_OF_RUNS if len(side.runs) == 1 else _OF_RUNS
        if experiments is not None:
            statement = _OF_EXPERIMENTS
        if side.ab_side is not None:
            statement = _OF_AB_SIDE
        params = {
            "runs": int_array(side.runs),
            "metrics": list(metrics),
            "never_ran": [STATUS_CODES[name] for name in NEVER_RAN],
            "ab_side": side.ab_side,
            "environments": None if side.environments is None else list(side.environments),
            "experiments": None if experiments is None else int_array(experiments),
        }
        columns = fetch_columns([*_COLUMNS.values()], statement, params)
        # numpy's `unique` takes 20 times as long where all differ
        if statement is _ALL_OF_RUNS and not np.diff(np.sort(columns[2])).all():
            columns = fetch_columns([*_COLUMNS.values()], _OF_RUNS, params)
        return cls(side, np.rec.fromarrays(columns, dtype=_KINDS))

    def tabled(self, experiments: Ints, metrics: Sequence[Metric]) -> Points:
        """Return the table of these experiments, in their order, and of these metrics."""
        chosen = self.table[np.isin(self.table.experiment, experiments)]
        column_of = {metric.pk: column for column, metric in enumerate(metrics)}
        columns = np.array([column_of[pk] for pk in chosen["metric"].tolist()], int)
        order = np.argsort(experiments)
        table = np.zeros((experiments.size, len(metrics)), _KINDS).view(np.recarray)
        table.value = table.noise = np.nan
        table[order[np.searchsorted(experiments, chosen["experiment"], sorter=order)], columns] = chosen
        return Points(self.side, table, self.own)

    def of(self, experiments: Collection[int]) -> Points:
        """Return the points of some experiments."""
        chosen = self.table[np.isin(self.table.experiment, [*experiments])]
        return Points(self.side, chosen.view(np.recarray))

    def as_in(self, cohort: Mapping[int, int]) -> Points:
        """Return the points by the cohort's experiments, which stand for the side's own."""
        measured = self.table.experiment
        self.table.experiment = [cohort.get(pk, pk) for pk in measured.tolist()]
        return Points(self.side, self.table, {stands: own for own, stands in cohort.items()})

    @cached_property
    def deciding(self) -> Floats:
        """Return the values that may decide, NaN for others."""
        return np.where(self.table.undecided, np.nan, self.table.value)

    @cached_property
    def there(self) -> Bools:
        return np.asarray(self.table.run > 0)

    @cached_property
    def good(self) -> Bools:
        """Return which points have the status ok; without a point it is true."""
        return np.asarray(self.table.status == 0)

    @cached_property
    def has(self) -> Bools:
        """Return which experiments have any point."""
        return np.asarray(self.there.any(axis=1))

    @cached_property
    def passes(self) -> Bools:
        return np.asarray(self.has & self.good.all(axis=1))

    def points(self, rows: Ints, columns: Ints) -> list[ComparedPoint]:
        """Return some of the points of a table."""
        ids = ("series", "run", "environment")
        series, run, environment, value, status, count = (
            self.table[name][rows, columns].tolist() for name in (*ids, "value", "status", "count")
        )
        values = [None if math.isnan(number) else number for number in value]
        statuses, ab_sides = [STATUS_NAMES[code] for code in status], [self.side.ab_side] * len(run)
        return list(map(ComparedPoint, series, run, environment, values, statuses, count, ab_sides))


@dataclass(frozen=True)
class Cohort:
    """The experiments of all sides, by number from 0 on, in the order of suite, case and knobs."""

    ids: Ints
    members: list[tuple[GroupKey, Ints]]  # the experiments of each group, in the order of its key
    suites: list[str]  # also those that the filter leaves out
    metrics: list[Metric]
    order: Ints  # of each experiment: the place of each metric, the suite's main ones first
    sides: list[Points]  # tables
    rules: list[list[Rule]]  # of each metric, for each experiment or for all
    # parts of the identity that every side has one of, and not all the same; hosts, if all are named
    across: list[str]

    def rule(self, row: int, column: int) -> Rule:
        return self.rules[row if len(self.rules) > 1 else 0][column]

    @classmethod
    def read(cls, sides: Sequence[Points], stored: Iterable[Metric], subject: Mapping[str, str]) -> Cohort:
        """Return the experiments of these points; `subject` names their suite, mode, dtype and arch, '' for
        any. Sides that differ in the only arch, backend or dtype that each has are matched by the rest. 2
        statements, 1 more for such sides, 1 more where an operator has thresholds."""
        measured = np.unique(np.concatenate([points.table.experiment for points in sides]))
        rows = fetch_tuples(
            """
            SELECT suite, backend, mode, dtype, coalesce(nullif(arch, ''), device), array_agg(id),
                array_agg(place::int)
            FROM (
                SELECT *, row_number() OVER (
                    ORDER BY suite COLLATE "C", "case" COLLATE "C", knobs::text COLLATE "C", id) place
                FROM hud_experiment WHERE id = ANY(%(ids)s::int[])
                    AND %(mode)s::text IN ('', mode) AND %(dtype)s::text IN ('', dtype)
                    AND %(arch)s::text IN ('', coalesce(nullif(arch, ''), device))) one
            GROUP BY 1, 2, 3, 4, 5
            """,
            {**subject, "ids": int_array(measured.tolist())},
        )
        groups = [(GroupKey(*identity), pks, places) for *identity, pks, places in rows]
        chosen = [group for group in groups if subject["suite"] in ("", group[0].suite)]
        sides, across, keys = _match(sides, [(key, pks) for key, pks, _places in chosen])
        by_key: dict[GroupKey, list[tuple[int, int]]] = {}  # place and experiment
        for key, pks, places in chosen:
            own = [(place, pk) for place, pk in zip(places, pks, strict=True) if pk in keys]
            if own:
                by_key.setdefault(key._replace(**across), []).extend(own)
        in_order = sorted(line for lines in by_key.values() for line in lines)
        row_of = {pk: row for row, (_place, pk) in enumerate(in_order)}
        metrics = sorted(stored, key=lambda one: one.name) or [Metric()]  # a table has a column
        ids = np.array([pk for _place, pk in in_order], np.int64)
        order, members = np.zeros((ids.size, len(metrics)), np.int64), []
        for key in sorted(by_key):
            own_rows = np.sort(np.array([row_of[pk] for _place, pk in by_key[key]], int))
            by_place = sorted(range(len(metrics)), key=lambda at: metric_place(key.suite, metrics[at]))
            order[own_rows] = np.argsort(by_place)
            members.append((key, own_rows))
        thresholds = Thresholds.read()
        rules = [[default_rule(metric) for metric in metrics]]
        if {row.metric for row in thresholds.rows} & {"", *(metric.name for metric in metrics)}:
            experiments = Experiment.objects.in_bulk(ids.tolist())
            rules = [[thresholds.of(experiments[pk], metric) for metric in metrics] for pk in ids.tolist()]
        tables = [points.tabled(ids, metrics) for points in sides]
        suites = sorted({key.suite for key, _pks, _places in groups})
        hosts = {points.side.filters.get("host", "") for points in sides}
        of_hosts = ["host"] if "" not in hosts and len(hosts) > 1 else []
        return cls(ids, members, suites, metrics, order, tables, rules, [*across, *of_hosts])


def _match(
    sides: Sequence[Points], groups: Sequence[tuple[GroupKey, Sequence[int]]]
) -> tuple[list[Points], dict[str, str], set[int]]:
    """Return the sides, with the baseline's experiments in place of those that differ from them only in parts
    of the identity that every side has one of; these parts, with their values; and the cohort's experiments.
    1 statement where there are such parts."""
    of_sides = []
    for points in sides:
        there, subject = set(points.table.experiment.tolist()), points.side.subject.items()
        own = [(key, there.intersection(pks)) for key, pks in groups]
        own = [(key, pks) for key, pks in own if pks and subject <= key._asdict().items()]
        of_sides.append(own)
    ids = [{pk for _key, pks in own for pk in pks} for own in of_sides]
    sides = [points.of(pks) for points, pks in zip(sides, ids, strict=True)]
    across = {}
    for kind in EXPERIMENT_KINDS:
        values = [{getattr(key, kind) for key, _pks in own} for own in of_sides]
        if all(len(one) == 1 for one in values) and len(set().union(*values)) > 1:
            across[kind] = " → ".join(value for (value,) in values)
    if across:
        rest = {*Experiment.IDENTITY} - {*across} - ({"device"} if "arch" in across else set())
        columns = ", ".join(f'"{name}"' for name in sorted(rest))
        alike = fetch_tuples(
            f"SELECT array_agg(id) FROM hud_experiment WHERE id = ANY(%(ids)s::int[]) GROUP BY {columns}",  # noqa: S608 — constants  # nosec B608
            {"ids": int_array(set().union(*ids))},
        )
        stands: dict[int, int] = {}
        for (pks,) in alike:
            stands |= dict.fromkeys(pks, next(pk for own in ids for pk in pks if pk in own))
        sides = [
            points.as_in({pk: stands[pk] for pk in own if stands[pk] != pk})
            for points, own in zip(sides, ids, strict=True)
        ]
        ids = [{*stands.values()}]
    return sides, across, set().union(*ids)


def add_details(points: Iterable[ComparedPoint]) -> None:
    """Add values and variants of the compilations, the cards of the level, the outside system's code, the
    note and the quality of these points: 1 statement, none without points."""
    by_key: dict[tuple[int, ...], list[ComparedPoint]] = {}
    for point in points:
        side = -1 if point.ab_side is None else point.ab_side
        by_key.setdefault((point.run_id, point.series_id, point.environment_id, side), []).append(point)
    if not by_key:
        return
    names = ("runs", "series", "environments", "ab_sides")
    rows = fetch_tuples(
        """
        SELECT w.*, p.value, p."values", p.variants, p.code, p.note, p.quality,
            ARRAY(SELECT jsonb_array_elements_text(state.level->'cards'))
        FROM unnest(%(runs)s::int[], %(series)s::int[], %(environments)s::int[], %(ab_sides)s::int[])
            AS w(run_id, series_id, environment_id, side)
        CROSS JOIN LATERAL (
            SELECT order_time, value, "values", variants, code, note, quality FROM hud_point
            WHERE w.side < 0 AND run_id = w.run_id AND series_id = w.series_id
                AND environment_id = w.environment_id
            UNION ALL
            SELECT order_time, value, "values", variants, code, note, quality FROM hud_sidepoint
            WHERE run_id = w.run_id AND series_id = w.series_id AND environment_id = w.environment_id
                AND side = w.side
        ) p
        JOIN hud_environment e ON e.id = w.environment_id
        LEFT JOIN hud_seriesstate state ON (state.series_id, state.class_key) = (w.series_id, e.class_key)
        ORDER BY p.order_time
        """,
        dict(zip(names, map(int_array, zip(*by_key, strict=True)), strict=True)),
    )
    for *own, value, values, variants, code, note, quality, cards in rows:
        numbers = [number for number in (values or [value]) if number is not None]
        for point in by_key[tuple(own)]:
            point.values, point.variants = numbers, variants or []
            point.code, point.note, point.quality, point.cards = code, note, quality, cards


class PointPlace(NamedTuple):
    """The environment class, card and host of a measured point."""

    class_key: str = ""
    card: str = ""  # '' where nothing says it
    host: str = ""


@dataclass
class Places:
    """Hosts, cards and environments of the points of all sides."""

    environments: dict[int, Environment]
    runs: dict[int, Run]

    @classmethod
    def read(cls, sides: Sequence[Points]) -> Places:
        """Return the places of these points: 2 statements, 1 where the sides are single runs."""
        newest = {points.side.newest.pk: points.side.newest for points in sides}
        environments = {pk for points in sides for pk in np.unique(points.table.environment).tolist()}
        ran = {pk for points in sides for pk in np.unique(points.table.run).tolist()}
        return cls(by_id(Environment, environments), {**newest, **by_id(Run, ran - newest.keys())})

    def of(self, environment_id: int, run_id: int) -> PointPlace:
        environment, host = self.environments[environment_id], self.runs[run_id].host_name
        return PointPlace(environment.class_key, str(environment.facts.get("gpu_uuid") or ""), host)

    def elsewhere(self, base: Points, head: Points) -> Bools:
        """Return which experiments have a metric whose two points were measured at different places."""
        both, numbers = np.nonzero(base.there & head.there), dict[PointPlace, int]()
        keys = [points.table.environment[both] << 32 | points.table.run[both] for points in (base, head)]
        measured, which = np.unique(keys, return_inverse=True)
        places = [self.of(key >> 32, key & (2**32 - 1)) for key in measured.tolist()]
        of_base, of_head = np.array([numbers.setdefault(spot, len(numbers)) for spot in places], int)[which]
        differs = np.zeros(len(base.there), bool)
        differs[both[0][of_base != of_head]] = True
        return differs
