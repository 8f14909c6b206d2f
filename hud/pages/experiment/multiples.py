"""The headline metrics of an experiment over its runs: the data of small charts on one axis."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

import orjson
from django.contrib.auth.models import User

from hud.models import (
    Experiment,
    Metric,
    Regression,
    Run,
    Series,
    compilation_key,
)
from hud.pages.experiment.history import History, Range, branches, changes, surroundings
from hud.sql import attach, by_id, fetch, fetch_models, fetch_tuples, int_array
from hud.pages.suite.columns import key_of, place_of
from hud.points.targets import AppliedTarget, Targets
from hud.pages.values import MetricValue
from hud.runs.branches import branch_or_default, other_branch
from runner.schema.metrics import role_of
from runner.schema.statistics import median

MOST_ROWS = 6
MOST_OVERLAYS = 4
_LEAST_RUNS = 5  # of which one is called the best
_STRIPS = ("accuracy", "graph_breaks")  # a cell a run in place of a chart
# Drawn hollow in the chart of another metric, where that is shown.
_BESIDE = {"warm_compile_s": "cold_compile_s", "eager_device_latency_ms": "device_latency_ms"}
_STEP_FACTS = ("triton", "driver", "cuda", "python")  # of one class too, beside what its class says
Key = tuple[datetime, int]  # of a point: its time and its run, which may have several
_ACTIVE = ("suspect", "open", "confirmed", "acknowledged")


@dataclass(slots=True)
class Spot:
    """The values of a metric in one run: one for each compilation, by its number."""

    run: int
    compilations: list[tuple[int, float]]
    value: float | None
    verdict: str = ""
    code: str = ""
    failed: bool = False

    def join_processes(self) -> None:
        """Make each compilation the median of its processes, and the value theirs."""
        found: dict[int, list[float]] = {}
        for number, value in self.compilations:
            found.setdefault(number, []).append(value)
        self.compilations = [(number, median(each)) for number, each in found.items()]
        self.value = median([value for _number, value in self.compilations]) if found else None


@dataclass(slots=True)
class Slot:
    """A place on the axis: the point of one run."""

    run: int
    time: datetime
    commit: str
    branch: str
    host: str
    environment: int
    changed: list[str] = field(default_factory=list)  # facts that differ from the slot before
    step: bool = False  # more than torch differs from the slot before

    @property
    def key(self) -> Key:
        return self.time, self.run


@dataclass
class Row:
    """A chart: a metric with what it is judged against."""

    metric: Metric
    spots: dict[Key, Spot] = field(default_factory=dict)
    beside: Row | None = None  # drawn hollow in the same chart
    overlays: dict[int, dict[Key, Spot]] = field(default_factory=dict)  # by experiment
    level: float | None = None  # accepted
    level_start: datetime | None = None
    noise: float | None = None  # relative
    verdict: str = ""
    change: float | None = None
    target: AppliedTarget | None = None
    ceiling: float | None = None  # what the host's measured ceiling would give
    best: float | None = None  # of the runs of the default branch that are drawn
    regression: Regression | None = None  # active

    @property
    def newest(self) -> float | None:
        return next((spot.value for spot in reversed(self.spots.values()) if spot.value is not None), None)

    @property
    def guides(self) -> list[tuple[Literal["target", "ceiling", "best"], float]]:
        """Return the values that get a line across the chart."""
        found: list[tuple[Literal["target", "ceiling", "best"], float]] = []
        if self.target:
            found.append(("target", self.target.value))
        if self.ceiling is not None:
            found.append(("ceiling", self.ceiling))
        if self.best is not None:
            found.append(("best", self.best))
        return found


@dataclass
class Multiples:
    slots: list[Slot] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)  # the chosen metric's first
    strips: list[Row] = field(default_factory=list)
    regressions: list[Regression] = field(default_factory=list)  # of the experiment, newest first

    @property
    def active(self) -> Regression | None:
        """Return the regression that the page speaks of: the largest against its noise."""
        found = [one for one in self.regressions if one.state in _ACTIVE]
        return max(found, key=lambda one: abs(one.factor or 0.0), default=None)

    @property
    def active_count(self) -> int:
        return sum(one.state in _ACTIVE for one in self.regressions)

    @property
    def steps(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.step]

    @property
    def branches(self) -> list[str]:
        return sorted({branch_or_default(slot.branch) for slot in self.slots})


def choose(own: Sequence[Series], chosen: Series) -> tuple[list[Series], list[Series]]:
    """Return the series that get a chart, the chosen one's first, then one for each meaning in the order of
    the suites' columns; and those with a strip of cells."""
    names = {one.metric.name for one in own}
    headline = [one for one in own if one.pk != chosen.pk and role_of(one.metric.name, names) == "headline"]
    strips = [one for one in headline if one.metric.name in _STRIPS]
    charts = [one for one in headline if one.metric.name not in _STRIPS and one.metric.kind != "status"]
    shown = {one.metric.name for one in (chosen, *charts)}
    beside = [one for one in charts if _BESIDE.get(one.metric.name) in shown]
    best: dict[str, Series] = {}
    for one in sorted(charts, key=lambda one: place_of(one.metric.name)):
        if one not in beside:
            best.setdefault(key_of(one.metric.name), one)
    best.pop(key_of(chosen.metric.name), None)
    charts = [chosen, *best.values()][:MOST_ROWS]
    kept = {one.metric.name for one in charts}
    return [*charts, *(one for one in beside if _BESIDE[one.metric.name] in kept)], strips


def read(
    history: History,
    chosen: Series,
    series: Mapping[int, Sequence[Series]],
    *,
    overlaid: Sequence[Experiment],
    asked: Range,
    first: datetime | None,
    targets: Targets,
) -> Multiples:
    """Return the charts of an experiment from the time `first` on, in 4 statements. `series` has those of
    each experiment; A/B runs are left out."""
    charts, strips = choose(series[history.experiment.pk], chosen)
    names = {one.metric.name for one in charts}
    over = {
        one.pk: one
        for experiment in overlaid
        for one in series.get(experiment.pk, [])
        if one.metric.name in names
    }
    rows = {one.pk: Row(one.metric, target=targets.own(history.experiment, one.metric)) for one in charts}
    cells = {one.pk: Row(one.metric) for one in strips}
    spots, slots = _read([*rows, *cells, *over], asked, first, drawn=rows.keys() | cells.keys())
    _add_changes(slots)
    for pk, row in (*rows.items(), *cells.items()):
        row.spots = spots.get(pk, {})
    by_name = {row.metric.name: row for row in rows.values()}
    for pk, one in over.items():
        by_name[one.metric.name].overlays[one.experiment_id] = spots.get(pk, {})
    found = Multiples(slots, strips=[row for row in cells.values() if row.spots])
    for row in rows.values():
        owner = by_name.get(_BESIDE.get(row.metric.name, ""))
        if owner is None or row.metric == chosen.metric:
            found.rows.append(row)
        elif row.spots:
            owner.beside = row
    found.rows = [row for row in found.rows if row.spots]
    branched = {slot.key for slot in slots if other_branch(slot.branch)}
    for row in found.rows:
        row.best = _best(row, branched)
    newest = history.newest
    _add_levels(rows, newest.environment.class_key if newest else "")
    found.regressions = _regressions(series[history.experiment.pk])
    for regression in found.regressions:
        if regression.state in _ACTIVE and regression.series_id in rows:
            rows[regression.series_id].regression = regression
    found.rows[1:] = sorted(found.rows[1:], key=lambda row: row.regression is None)  # what moved, first
    return found


def _regressions(own: Sequence[Series]) -> list[Regression]:
    """Return the regressions of these series, newest first: 1 statement, 2 more if there are any."""
    by_pk = {one.pk: one for one in own}
    newest = "WHERE series_id = ANY(%(series)s::int[]) ORDER BY since DESC LIMIT 50"
    found = fetch_models(Regression, newest, {"series": int_array(by_pk)})
    names = ("first_run", "last_good_run", "pairs_run")
    runs = by_id(Run, [getattr(one, f"{name}_id") for one in found for name in names])
    attach(found, "series", by_pk)
    attach(found, "owner", by_id(User, [one.owner_id for one in found]))
    for name in names:
        attach(found, name, runs)
    return found


def add_ceilings(rows: Iterable[Row], latest: Iterable[MetricValue]) -> None:
    """Add what the ceiling of the host would give, of the experiment's latest values: a share of it is stored
    beside bandwidth and device time, and was taken in the same processes."""
    by_name = {value.metric.name: value for value in latest}
    share = by_name.get("share_of_ceiling")
    if share is None or not share.median:
        return
    for row in rows:
        value = by_name.get(row.metric.name)
        if value is None or value.median is None or value.run_id != share.run_id:
            continue
        if value is share:
            row.ceiling = 1.0
        elif row.metric.name == "device_bandwidth_gbps":
            row.ceiling = value.median / share.median
        elif row.metric.name == "device_latency_ms":
            row.ceiling = value.median * share.median


def _best(row: Row, branched: Container[Key]) -> float | None:
    """Return the best result of a run, where enough runs and a direction tell what is good."""
    values = [
        spot.value
        for key, spot in row.spots.items()
        if spot.value is not None and not spot.failed and key not in branched
    ]
    if len(values) < _LEAST_RUNS or row.metric.direction not in ("up", "down"):
        return None
    return max(values) if row.metric.direction == "up" else min(values)


def _read(
    series: list[int], asked: Range, first: datetime | None, *, drawn: Container[int]
) -> tuple[dict[int, dict[Key, Spot]], list[Slot]]:
    """Return the points of each series, and the runs of those in `drawn`, both oldest first: 1 statement."""
    rows = fetch_tuples(
        """
        WITH verdicts AS MATERIALIZED (
            SELECT run_id, series_id, environment_id, order_time, verdict FROM hud_verdict
            WHERE series_id = ANY(%(series)s::int[])
                AND order_time >= coalesce(%(first)s::timestamptz, order_time)
        )
        SELECT extract(epoch FROM m.order_time)::float8, m.run_id, m.series_id, m.environment_id, m.repeat,
            m.compilation, m.value, m.status, m.code, v.verdict, r.commit, r.branch, r.host_name
        FROM (
            SELECT newest.* FROM unnest(%(series)s::int[]) s(id)
            JOIN LATERAL (
                SELECT order_time, run_id, series_id, environment_id, repeat, compilation, value, status, code
                FROM hud_measurement
                WHERE series_id = s.id AND order_time >= coalesce(%(first)s::timestamptz, order_time)
                    AND (%(until)s::timestamptz IS NULL OR order_time <= %(until)s)
                ORDER BY order_time DESC, run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
            ) newest ON true OFFSET 0
        ) m
        JOIN hud_run r ON r.id = m.run_id AND r.base_interpreter = ''
            AND (%(branches)s::text[] IS NULL OR r.branch = ANY(%(branches)s))
        LEFT JOIN verdicts v ON (v.run_id, v.series_id, v.environment_id, v.order_time)
            = (m.run_id, m.series_id, m.environment_id, m.order_time)
        ORDER BY m.order_time, m.run_id, m.series_id, m.environment_id, m.repeat
        """,
        {
            "series": series,
            "first": first,
            "until": asked.until,
            "points": asked.points,
            "branches": branches(asked.branch),
        },
    )
    times = {epoch: datetime.fromtimestamp(epoch, UTC) for epoch in {row[0] for row in rows}}
    spots: dict[int, dict[Key, Spot]] = {own: {} for own in series}
    slots: dict[Key, Slot] = {}
    several: dict[int, Spot] = {}  # points of more than one process
    for epoch, run, own, environment, repeat, compilation, value, status, code, verdict, *of_run in rows:
        key = times[epoch], run
        if own in drawn and key not in slots:
            commit, branch, host = of_run
            slots[key] = Slot(run, key[0], commit, branch, host, environment)
        measured = [] if value is None else [(compilation_key(compilation, repeat), value)]
        spot = spots[own].get(key)
        if spot is None:
            spots[own][key] = Spot(run, measured, value, verdict or "", code or "", bool(status))
        else:
            several[id(spot)] = spot
            spot.compilations += measured
            spot.verdict, spot.code = verdict or "", code or ""
            spot.failed |= bool(status)
    for spot in several.values():
        spot.join_processes()
    return spots, list(slots.values())


def _add_changes(slots: Sequence[Slot]) -> None:
    """Add what each run's environment changed: 1 statement."""
    environments = surroundings({slot.environment for slot in slots})
    for before, slot in pairwise([slot for slot in slots if not other_branch(slot.branch)]):
        if before.environment != slot.environment:
            old, new = environments[before.environment], environments[slot.environment]
            slot.changed = sorted(changes(old, new), key=lambda text: text.startswith("torch"))
            slot.step = old.class_key != new.class_key or any(
                old.facts.get(name) and new.facts.get(name) and old.facts[name] != new.facts[name]
                for name in _STEP_FACTS
            )


def _add_levels(rows: Mapping[int, Row], class_key: str) -> None:
    """Add what the newest point of each series is judged against: 1 statement."""
    for state in levels_of(rows, class_key):
        row = rows[state.series_id]
        row.level, row.level_start = state.accepted
        row.noise, row.verdict, row.change = state.noise, state.verdict, state.change


@dataclass(slots=True)
class SeriesLevel:
    """The accepted level of a series in one class of environments, as the judge stored it."""

    series_id: int
    class_key: str
    kept: str | None  # values of the accepted level, as JSON
    start: str | None
    baseline: float | None
    noise: float | None
    verdict: str
    change: float | None

    @property
    def accepted(self) -> tuple[float | None, datetime | None]:
        """Return the accepted level and when it began."""
        found = orjson.loads(self.kept) if self.kept else []
        start = datetime.fromisoformat(self.start) if self.start else None
        return median(found) if found else self.baseline, start


def levels_of(series: Iterable[int], class_key: str | None = None) -> list[SeriesLevel]:
    """Return the levels of these series in one class or all. What the judge keeps beside them, its marks, is
    many times that: 1 statement."""
    return fetch(
        SeriesLevel,
        """
        SELECT series_id, class_key, (level->'values')::text kept, level->>'start' AS start, baseline, noise,
            verdict, change
        FROM hud_seriesstate
        WHERE series_id = ANY(%(series)s::int[]) AND class_key = coalesce(%(class_key)s, class_key)
        """,
        {"series": int_array(series), "class_key": class_key},
    )


def slot_of_time(slots: Sequence[Slot], time: datetime) -> int:
    """Return the index of the last slot that is not after this time; -1 where all are."""
    return bisect_right([slot.time for slot in slots], time) - 1
