"""The headline metrics of an experiment over its runs: the data of small charts on one axis."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db.models import F, QuerySet

from hud.models import (
    Environment,
    Experiment,
    Metric,
    Regression,
    Run,
    Series,
    SeriesState,
    compilation_key,
)
from hud.pages import values
from hud.pages.experiment.history import History, Range, branches, changes
from hud.pages.sql import by_id, fetch_tuples
from hud.pages.suite.columns import key_of, place_of
from hud.pages.targets import AppliedTarget, Targets
from hud.runs.branches import branch_or_default, other_branch
from runner.schema.metrics import role_of
from runner.schema.statistics import median

MOST_ROWS = 6
MOST_OVERLAYS = 4
_STRIPS = ("accuracy", "graph_breaks")  # a cell a run in place of a chart
# Drawn hollow in the chart of another metric, where that is shown.
_BESIDE = {"warm_compile_s": "cold_compile_s", "eager_device_latency_ms": "device_latency_ms"}
_STEP_FACTS = ("triton", "driver", "cuda", "python")  # of one class too, beside what its class says
Key = tuple[datetime, int]  # of a point: its time and its run, which may have several
_ACTIVE = ("suspect", "open", "confirmed", "acknowledged")


class Reading(NamedTuple):
    """One process of a metric of the charts: a tuple, as there are hundreds."""

    series_id: int
    order_time: datetime
    run_id: int
    environment_id: int
    repeat: int
    compilation: int | None
    value: float | None
    status: int
    code: str | None
    verdict: str | None
    commit: str
    branch: str
    host: str


@dataclass(slots=True)
class Spot:
    """The values of a metric in one run: one for each compilation, by its number."""

    run: int
    compilations: list[tuple[int, float]]
    value: float | None
    verdict: str = ""
    code: str = ""
    failed: bool = False


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
    regression: Regression | None = None  # active

    @property
    def newest(self) -> float | None:
        return next((spot.value for spot in reversed(self.spots.values()) if spot.value is not None), None)


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
    targets: Targets,
) -> Multiples:
    """Return the charts of an experiment, in 4 statements. `series` has those of each experiment; A/B runs
    are left out."""
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
    first = history.points[0].order_time if history.points else None
    readings = _read([*rows, *cells, *over], asked, first)
    spots = _spots(readings)
    for pk, row in (*rows.items(), *cells.items()):
        row.spots = spots.get(pk, {})
    by_name = {row.metric.name: row for row in rows.values()}
    for pk, one in over.items():
        by_name[one.metric.name].overlays[one.experiment_id] = spots.get(pk, {})
    slots = _slots(reading for reading in readings if reading.series_id not in over)
    found = Multiples(slots, strips=[row for row in cells.values() if row.spots])
    for row in rows.values():
        owner = by_name.get(_BESIDE.get(row.metric.name, ""))
        if owner is None or row.metric == chosen.metric:
            found.rows.append(row)
        elif row.spots:
            owner.beside = row
    found.rows = [row for row in found.rows if row.spots]
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
    found = list(Regression.objects.filter(series__in=list(by_pk)).order_by("-since")[:50])
    names = ("first_run", "last_good_run", "pairs_run")
    runs = by_id(Run, [getattr(one, f"{name}_id") for one in found for name in names])
    owners = by_id(User, [one.owner_id for one in found])
    for one in found:
        one.series = by_pk[one.series_id]
        one.owner = owners.get(one.owner_id or 0)
        for name in names:
            setattr(one, name, runs.get(getattr(one, f"{name}_id")))
    return found


def _read(series: list[int], asked: Range, first: datetime | None) -> list[Reading]:
    found = fetch_tuples(
        f"""
        SELECT m.series_id, extract(epoch FROM m.order_time)::float8, m.run_id, m.environment_id, m.repeat,
            m.compilation, m.value, m.status, m.code, v.verdict, r.commit, r.branch, r.host_name
        FROM unnest(%(series)s::int[]) s(id)
        JOIN LATERAL (
            SELECT n.* FROM hud_measurement n
            WHERE n.series_id = s.id AND n.order_time >= coalesce(%(first)s::timestamptz, n.order_time)
                AND (%(until)s::timestamptz IS NULL OR n.order_time <= %(until)s)
            ORDER BY n.order_time DESC, n.run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
        ) m ON true
        JOIN hud_run r ON r.id = m.run_id AND r.base_interpreter = ''
            AND (%(branches)s::text[] IS NULL OR r.branch = ANY(%(branches)s))
        {values.VERDICT_JOIN}
        ORDER BY m.order_time, m.run_id, m.series_id, m.environment_id, m.repeat
        """,  # noqa: S608 — constants  # nosec B608
        {
            "series": series,
            "first": first,
            "until": asked.until,
            "points": asked.points,
            "branches": branches(asked.branch),
        },
    )
    times = {epoch: datetime.fromtimestamp(epoch, UTC) for epoch in {row[1] for row in found}}
    return [Reading(series, times[epoch], *rest) for series, epoch, *rest in found]


def _spots(readings: Iterable[Reading]) -> dict[int, dict[Key, Spot]]:
    """Return the points of each series, oldest first."""
    found: dict[int, dict[Key, Spot]] = {}
    for (time, run, series), group in groupby(
        readings, key=lambda one: (one.order_time, one.run_id, one.series_id)
    ):
        of_compilation: dict[int, list[float]] = {}
        processes = list(group)
        for one in processes:
            if one.value is not None:
                key = compilation_key(one.compilation, one.repeat)
                of_compilation.setdefault(key, []).append(one.value)
        middles = [(key, one[0] if len(one) == 1 else median(one)) for key, one in of_compilation.items()]
        value = median([middle for _key, middle in middles]) if middles else None
        last = processes[-1]
        failed = any(one.status for one in processes)
        found.setdefault(series, {})[time, run] = Spot(
            run, middles, value, last.verdict or "", last.code or "", failed
        )
    return found


def _slots(readings: Iterable[Reading]) -> list[Slot]:
    """Return the runs in order, each with what its environment changed: 1 statement."""
    slots: dict[Key, Slot] = {}
    for one in readings:
        if (one.order_time, one.run_id) not in slots:
            slots[one.order_time, one.run_id] = Slot(
                one.run_id, one.order_time, one.commit, one.branch, one.host, one.environment_id
            )
    found = list(slots.values())
    environments = Environment.objects.in_bulk({slot.environment for slot in found})
    for before, slot in pairwise([slot for slot in found if not other_branch(slot.branch)]):
        if before.environment != slot.environment:
            old, new = environments[before.environment], environments[slot.environment]
            slot.changed = sorted(changes(old, new), key=lambda text: text.startswith("torch"))
            slot.step = old.class_key != new.class_key or any(
                old.facts.get(name) and new.facts.get(name) and old.facts[name] != new.facts[name]
                for name in _STEP_FACTS
            )
    return found


def _add_levels(rows: Mapping[int, Row], class_key: str) -> None:
    """Add what the newest point of each series is judged against: 1 statement."""
    for state in with_levels(SeriesState.objects.filter(series__in=list(rows), class_key=class_key)):
        row = rows[state.series_id]
        row.level, row.level_start = level_of(state)
        row.noise, row.verdict, row.change = state.noise, state.verdict, state.change


def with_levels(states: QuerySet[SeriesState]) -> QuerySet[Any]:
    """Read of what the judge keeps only what `level_of` takes: its marks are many times that."""
    return states.defer("level").annotate(kept=F("level__values"), start=F("level__start"))


def level_of(state: Any) -> tuple[float | None, datetime | None]:
    """Return the accepted level of a series and when it began, of a state that was read `with_levels`."""
    found, start = state.kept or [], state.start
    return median(found) if found else state.baseline, datetime.fromisoformat(start) if start else None


def slot_of_time(slots: Sequence[Slot], time: datetime) -> int:
    """Return the index of the last slot that is not after this time; -1 where all are."""
    return bisect_right([slot.time for slot in slots], time) - 1
