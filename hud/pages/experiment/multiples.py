"""The headline metrics of an experiment over its runs: the data of small charts on one axis."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from django.contrib.auth.models import User

from hud.judging.regressions.states import ACTIVE
from hud.models import VERDICTS, Environment, Experiment, Metric, Point, Regression, Run, Series
from hud.pages.experiment.choice import Choice
from hud.pages.experiment.history import WINDOW, changes, window_params
from hud.points.columns import key_of, place_of
from hud.points.targets import AppliedTarget, Targets
from hud.runs.branches import branch_or_default, other_branch
from hud.sql import attach, by_id, fetch_models, fetch_tuples, int_array
from runner.schema.metrics import role_of

MOST_ROWS = 6
MOST_OVERLAYS = 4
_LEAST_RUNS = 5  # of which one is called the best
_STRIPS = ("accuracy", "graph_breaks")  # a cell a run in place of a chart
# Drawn hollow in the chart of another metric, where that is shown.
_BESIDE = {"warm_compile_s": "cold_compile_s", "eager_device_latency_ms": "device_latency_ms"}
_STEP_FACTS = ("triton", "driver", "cuda", "python")  # of one class too, beside what its class says
Key = tuple[datetime, int]  # of a point: its time and its run, which may have several


@dataclass(slots=True)
class Spot:
    """A point as it is drawn: its value, and those of its compilations by their place in the run."""

    compilations: list[tuple[int, float]]
    variants: list[str | None] | None  # of all compilations; None where none is known
    value: float | None
    verdict: str
    code: str
    failed: bool
    rerun: bool
    level: float | None  # that it was judged against
    noise: float | None
    change: float | None
    quality: str | None  # why it may not decide


@dataclass(slots=True)
class Slot:
    """A place on the axis: the points of one run."""

    run: int
    time: datetime
    commit: str
    branch: str
    host: str
    environment: int
    rerun: bool = False
    changed: list[str] = field(default_factory=list)  # facts that differ from the slot before
    step: bool = False  # more than torch differs from the slot before

    @property
    def key(self) -> Key:
        return self.time, self.run

    @property
    def counts(self) -> bool:
        """Return whether it is of the default branch and no rerun."""
        return not (self.rerun or other_branch(self.branch))


@dataclass
class Chart:
    """A chart: a metric, and its newest point with what that is judged against."""

    metric: Metric
    point: Point
    spots: dict[Key, Spot] = field(default_factory=dict)
    beside: Chart | None = None  # drawn hollow in the same chart
    overlays: dict[int, dict[Key, Spot]] = field(default_factory=dict)  # by experiment
    level_start: datetime | None = None
    target: AppliedTarget | None = None
    ceiling: float | None = None  # what the host's measured ceiling would give
    best: float | None = None  # of the drawn runs of the default branch, without reruns
    regression: Regression | None = None  # active

    @property
    def guides(self) -> list[tuple[str, float]]:
        """Return the values that get a line across the chart."""
        target = self.target.value if self.target else None
        values = {"target": target, "ceiling": self.ceiling, "best": self.best}
        return [(kind, value) for kind, value in values.items() if value is not None]


@dataclass
class Multiples:
    slots: list[Slot] = field(default_factory=list)
    rows: list[Chart] = field(default_factory=list)  # the chosen metric's first
    strips: list[Chart] = field(default_factory=list)
    regressions: list[Regression] = field(default_factory=list)  # of the experiment, newest first
    environments: dict[int, Environment] = field(default_factory=dict)  # of the slots and the newest point

    @property
    def active(self) -> Regression | None:
        """Return the regression that the page speaks of: the largest against its noise."""
        active = (one for one in self.regressions if one.state in ACTIVE)
        return max(active, key=lambda one: abs(one.factor or 0.0), default=None)

    @property
    def active_count(self) -> int:
        return sum(one.state in ACTIVE for one in self.regressions)

    @property
    def steps(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.step]

    @property
    def branches(self) -> list[str]:
        return sorted({branch_or_default(slot.branch) for slot in self.slots})


def _choose(own: Sequence[Series], chosen: Series) -> tuple[list[Series], list[Series]]:
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
    shown = {one.metric.name for one in charts}
    return [*charts, *(one for one in beside if _BESIDE[one.metric.name] in shown)], strips


def read(
    experiment: Experiment,
    chosen: Series,
    series: Mapping[int, Sequence[Series]],
    *,
    overlaid: Sequence[Experiment],
    choice: Choice,
    targets: Targets,
    latest: Mapping[int, Point],
) -> Multiples:
    """Return the charts of an experiment from the first point of the chosen series on, in 4 statements.
    `series` has those of each experiment, `latest` the newest point of each series."""
    charts, strips = _choose([one for one in series[experiment.pk] if one.pk in latest], chosen)
    names = {one.metric.name for one in charts}
    over = {one.pk: one for other in overlaid for one in series.get(other.pk, []) if one.metric.name in names}
    rows = {
        one.pk: Chart(one.metric, latest[one.pk], target=targets.own(experiment, one.metric))
        for one in charts
    }
    cells = {one.pk: Chart(one.metric, latest[one.pk]) for one in strips}
    spots, slots = _read([*rows, *cells, *over], choice, chosen.pk, drawn=rows.keys() | cells.keys())
    newest = latest[chosen.pk]
    environments = by_id(Environment, [newest.environment_id, *(slot.environment for slot in slots)])
    _add_changes(slots, environments)
    for pk, row in (*rows.items(), *cells.items()):
        row.spots = spots.get(pk, {})
    by_name = {row.metric.name: row for row in rows.values()}
    for pk, one in over.items():
        by_name[one.metric.name].overlays[one.experiment_id] = spots.get(pk, {})
    regressions = _regressions(series[experiment.pk])
    for regression in regressions:
        if regression.state in ACTIVE and regression.series_id in rows:
            rows[regression.series_id].regression = regression
    _add_level_starts(rows, environments[newest.environment_id].class_key)
    counting, shown = {slot.key for slot in slots if slot.counts}, []
    for row in rows.values():
        if not row.spots:
            continue
        owner = by_name.get(_BESIDE.get(row.metric.name, ""))
        if owner is None or row.metric == chosen.metric:
            row.best = _best(row, counting)
            shown.append(row)
        else:
            owner.beside = row
    shown[1:] = sorted(shown[1:], key=lambda row: row.regression is None)  # what moved, first
    strips_shown = [row for row in cells.values() if row.spots]
    return Multiples(slots, shown, strips_shown, regressions, environments)


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


def add_ceilings(rows: Iterable[Chart], latest: Iterable[Point]) -> None:
    """Add what the ceiling of the host would give, of the experiment's latest values: a share of it is stored
    beside bandwidth and device time, and was taken in the same processes."""
    by_name = {point.metric.name: point for point in latest}
    share = by_name.get("share_of_ceiling")
    if share is None or not share.value:
        return
    for row in rows:
        point = by_name.get(row.metric.name)
        if point is None or point.value is None or point.run_id != share.run_id:
            continue
        if point is share:
            row.ceiling = 1.0
        elif row.metric.name == "device_bandwidth_gbps":
            row.ceiling = point.value / share.value
        elif row.metric.name == "device_latency_ms":
            row.ceiling = point.value * share.value


def _best(row: Chart, counting: Container[Key]) -> float | None:
    """Return the best result of a run, where enough runs and a direction tell what is good."""
    values = [
        spot.value
        for key, spot in row.spots.items()
        if spot.value is not None and not spot.failed and not spot.quality and key in counting
    ]
    if len(values) < _LEAST_RUNS or row.metric.direction not in ("up", "down"):
        return None
    return max(values) if row.metric.direction == "up" else min(values)


def _read(
    series: list[int], choice: Choice, chosen: int, *, drawn: Container[int]
) -> tuple[dict[int, dict[Key, Spot]], list[Slot]]:
    """Return the points of each series, and the runs of those in `drawn`, both oldest first, from the first
    point of the chosen series on: 1 statement."""
    rows = fetch_tuples(
        f"""
        WITH n AS MATERIALIZED (
            SELECT n.series_id, n.order_time, n.run_id, n.environment_id, n.rerun, n.branch, n.value,
                n.values, n.variants, n.status, n.code, n.verdict, n.level, n.noise, n.change,
                n.quality
            FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL ({WINDOW}) n
        )
        SELECT extract(epoch FROM n.order_time)::float8, n.run_id, n.series_id, n.environment_id, n.rerun,
            n.branch, r.commit, r.host_name, n.values, n.variants, n.value, n.verdict, n.code, n.status <> 0,
            n.level, n.noise, n.change, n.quality
        FROM n JOIN hud_run r ON r.id = n.run_id
        WHERE n.order_time >= (SELECT min(order_time) FROM n WHERE series_id = %(chosen)s)
        ORDER BY n.order_time, n.run_id, n.series_id, n.environment_id
        """,  # noqa: S608 — a constant  # nosec B608
        {**window_params(series, replace(choice, before="")), "chosen": chosen},
    )
    times = {epoch: datetime.fromtimestamp(epoch, UTC) for epoch in {row[0] for row in rows}}
    spots: dict[int, dict[Key, Spot]] = {own: {} for own in series}
    slots: dict[Key, Slot] = {}
    for epoch, run, own, environment, rerun, branch, commit, host, values, variants, *point in rows:
        value, verdict, code, failed, *judged = point
        key = times[epoch], run
        if own in drawn and key not in slots:
            slots[key] = Slot(run, key[0], commit, branch, host, environment, rerun)
        measured = enumerate(values or [value]) if value is not None else ()
        compilations = [(place, each) for place, each in measured if each is not None]
        word = "" if verdict is None else VERDICTS[verdict]
        spots[own][key] = Spot(compilations, variants, value, word, code or "", failed, rerun, *judged)
    return spots, list(slots.values())


def _add_changes(slots: Sequence[Slot], environments: Mapping[int, Environment]) -> None:
    """Add what each run's environment changed."""
    for before, slot in pairwise([slot for slot in slots if slot.counts]):
        if before.environment != slot.environment:
            old, new = environments[before.environment], environments[slot.environment]
            slot.changed = sorted(changes(old, new), key=lambda text: text.startswith("torch"))
            slot.step = old.class_key != new.class_key or any(
                old.facts.get(name) and new.facts.get(name) and old.facts[name] != new.facts[name]
                for name in _STEP_FACTS
            )


def _add_level_starts(rows: Mapping[int, Chart], class_key: str) -> None:
    """Add since when each series has its level in a class of environments: 1 statement."""
    starts = fetch_tuples(
        """
        SELECT series_id, level->>'start' FROM hud_seriesstate
        WHERE series_id = ANY(%(series)s::int[]) AND class_key = %(class_key)s AND level->>'start' <> ''
        """,
        {"series": int_array(rows), "class_key": class_key},
    )
    for pk, start in starts:
        point = rows[pk].point
        if point.level is not None and point.level_stream_id is None:
            rows[pk].level_start = datetime.fromisoformat(start)


def slot_of_time(slots: Sequence[Slot], time: datetime) -> int:
    """Return the index of the last slot that is not after this time; -1 where all are."""
    return bisect_right([slot.time for slot in slots], time) - 1
