"""The points of an experiment: its headline metrics over its runs, the data of small charts on one axis; and
the histories of one metric."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from hud.judging.regressions.read import add_runs
from hud.models import VERDICTS, Environment, Experiment, Metric, Point, Regression, Run, Series
from hud.pages.charts.choice import Choice
from hud.points.columns import key_of, place_of
from hud.points.facts import changes
from hud.points.read import with_levels
from hud.points.targets import AppliedTarget, Targets
from hud.runs.branches import branch_or_default, other_branch, stored_names
from hud.sql import attach, by_id, fetch, fetch_models, fetch_tuples, int_array
from hud.states.regressions import ACTIVE
from hud.tables.table import DataTable
from runner.schema.metrics import role_of

MOST_ROWS = 6
MOST_OVERLAYS = 4
_LEAST_RUNS = 5  # of which one is called the best
_STRIPS = ("accuracy", "graph_breaks")  # a cell a run in place of a chart
# Drawn hollow in the chart of another metric, where that is shown.
_BESIDE = {"warm_compile_s": "cold_compile_s", "eager_device_latency_ms": "device_latency_ms"}
_STEP_FACTS = ("triton", "driver", "cuda", "python")  # of one class too, beside what its class says
Key = tuple[datetime, int]  # of a point: its time and its run, which may have several

OF_RUN = DataTable[Run](
    "placed_by=order_time_source host=host_name source commit branch",
    branch=lambda run: branch_or_default(run.branch),
)
OF_ENVIRONMENT = DataTable[Environment]("environment=fingerprint environment_class=class_key torch torch_git")

# The newest points of series s in a range.
_WINDOW = """
    SELECT * FROM hud_point
    WHERE series_id = s.id
        AND (%(since)s::timestamptz IS NULL OR order_time >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR order_time <= %(until)s)
        AND (%(time)s::timestamptz IS NULL OR
            (order_time, run_id) < (%(time)s::timestamptz, %(run)s::int))
        AND (%(branches)s::text[] IS NULL OR branch = ANY(%(branches)s))
    ORDER BY order_time DESC, run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
"""


def _window_params(series: Iterable[int], choice: Choice) -> dict[str, Any]:
    time, run = choice.place or (None, None)
    own = {*stored_names(), *stored_names(choice.branch)}
    return {
        "series": int_array(series),
        "points": choice.points,
        "since": choice.since,
        "until": choice.until,
        "time": time,
        "run": run,
        "branches": sorted(own) if choice.branch else None,  # the default branch beside the one asked for
    }


@dataclass(slots=True)
class Spot:
    """A point as it is drawn. Of each run one is its place on the axis, a slot."""

    time: datetime
    run: int
    commit: str = ""
    branch: str = ""
    host: str = ""
    environment: int = 0
    rerun: bool = False
    series: int = 0
    value: float | None = None
    values: list[float | None] | None = None  # of several compilations
    variants: list[str | None] | None = None  # of all compilations; None where none is known
    verdict_code: int | None = None
    code: str | None = None
    failed: bool = False
    level: float | None = None  # that it was judged against
    noise: float | None = None
    change: float | None = None
    quality: str | None = None  # why it may not decide
    changed: Sequence[str] = ()  # facts that differ from the slot before
    step: bool = False  # more than torch differs from the slot before
    compilations: list[tuple[int, float]] = field(init=False)  # with a value, by their place in the run

    def __post_init__(self) -> None:
        values = [] if self.value is None else self.values or [self.value]
        self.compilations = [(index, value) for index, value in enumerate(values) if value is not None]

    @property
    def key(self) -> Key:
        return self.time, self.run

    @property
    def counts(self) -> bool:
        """Return whether it is of the default branch and no rerun."""
        return not (self.rerun or other_branch(self.branch))

    @property
    def word(self) -> str:
        """Return the verdict, else the outside system's code."""
        return (VERDICTS[self.verdict_code] if self.verdict_code is not None else "") or self.code or ""


@dataclass
class Chart:
    """A chart: a metric, and its newest point with what that is judged against."""

    metric: Metric
    point: Point
    spots: dict[Key, Spot] = field(default_factory=dict)
    beside: Chart | None = None  # drawn hollow in the same chart
    overlays: dict[str, dict[Key, Spot]] = field(default_factory=dict)  # by backend
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
    slots: list[Spot] = field(default_factory=list)
    rows: list[Chart] = field(default_factory=list)  # the chosen metric's first
    strips: list[Chart] = field(default_factory=list)
    regressions: list[Regression] = field(default_factory=list)  # of the experiment, newest first
    environments: dict[int, Environment] = field(default_factory=dict)  # of the slots and the newest point

    @property
    def active(self) -> Regression | None:
        """Return the regression that the page speaks of: the chosen metric's, else the largest against its
        noise."""
        if self.rows and self.rows[0].regression:
            return self.rows[0].regression
        active = (regression for regression in self.regressions if regression.state in ACTIVE)
        return max(active, key=lambda regression: abs(regression.factor or 0.0), default=None)

    @property
    def active_count(self) -> int:
        return sum(regression.state in ACTIVE for regression in self.regressions)

    @property
    def steps(self) -> list[Spot]:
        return [slot for slot in self.slots if slot.step]

    @property
    def branches(self) -> list[str]:
        return sorted({branch_or_default(slot.branch) for slot in self.slots})


def _choose(own: Sequence[Series], chosen: Series) -> tuple[list[Series], list[Series]]:
    """Return the series that get a chart, the chosen one's first, then one for each meaning in the order of
    the suites' columns; and those with a strip of cells."""
    names = {row.metric.name for row in own}
    headline = [row for row in own if row.pk != chosen.pk and role_of(row.metric.name, names) == "headline"]
    strips = [row for row in headline if row.metric.name in _STRIPS]
    charts = [row for row in headline if row.metric.name not in _STRIPS and row.metric.kind != "status"]
    shown = {chart.metric.name for chart in (chosen, *charts)}
    beside = [chart for chart in charts if _BESIDE.get(chart.metric.name) in shown]
    best: dict[str, Series] = {}
    for chart in sorted(charts, key=lambda chart: place_of(chart.metric.name)):
        if chart not in beside:
            best.setdefault(key_of(chart.metric.name), chart)
    best.pop(key_of(chosen.metric.name), None)
    charts = [chosen, *best.values()][:MOST_ROWS]
    shown = {chart.metric.name for chart in charts}
    return [*charts, *(chart for chart in beside if _BESIDE[chart.metric.name] in shown)], strips


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
    charts, strips = _choose([row for row in series[experiment.pk] if row.pk in latest], chosen)
    names = {chart.metric.name for chart in charts}
    over = {row.pk: row for other in overlaid for row in series.get(other.pk, []) if row.metric.name in names}
    backends = {other.pk: other.backend for other in overlaid}
    rows = {
        chart.pk: Chart(chart.metric, latest[chart.pk], target=targets.own(experiment, chart.metric))
        for chart in charts
    }
    cells = {strip.pk: Chart(strip.metric, latest[strip.pk]) for strip in strips}
    spots, slots = _read([*rows, *cells, *over], choice, chosen.pk, drawn=rows.keys() | cells.keys())
    newest = latest[chosen.pk]
    environments = by_id(Environment, [newest.environment_id, *(slot.environment for slot in slots)])
    _add_changes(slots, environments)
    for pk, row in (*rows.items(), *cells.items()):
        row.spots = spots.get(pk, {})
    by_name = {row.metric.name: row for row in rows.values()}
    for pk, overlay in over.items():
        by_name[overlay.metric.name].overlays[backends[overlay.experiment_id]] = spots.get(pk, {})
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
    by_pk = {row.pk: row for row in own}
    newest = "WHERE series_id = ANY(%(series)s::int[]) ORDER BY since DESC LIMIT 50"
    models = fetch_models(Regression, newest, {"series": int_array(by_pk)})
    attach(models, "series", by_pk)
    add_runs(models, "first_run", "last_good_run", "pairs_run")
    return models


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
) -> tuple[dict[int, dict[Key, Spot]], list[Spot]]:
    """Return the points of each series, and the runs of those in `drawn`, both oldest first, from the first
    point of the chosen series on: 1 statement."""
    spots = fetch(
        Spot,
        f"""
        WITH n AS MATERIALIZED (
            SELECT n.series_id, n.order_time, n.run_id, n.environment_id, n.rerun, n.branch, n.value,
                n.values, n.variants, n.status, n.code, n.verdict, n.level, n.noise, n.change,
                n.quality
            FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL ({_WINDOW}) n
        )
        SELECT n.order_time, n.run_id, r.commit, n.branch, r.host_name, n.environment_id, n.rerun,
            n.series_id, n.value, n.values, n.variants, n.verdict, n.code, n.status <> 0, n.level, n.noise,
            n.change, n.quality
        FROM n JOIN hud_run r ON r.id = n.run_id
        WHERE n.order_time >= (SELECT min(order_time) FROM n WHERE series_id = %(chosen)s)
        ORDER BY n.order_time, n.run_id, n.series_id, n.environment_id
        """,  # noqa: S608 — a constant  # nosec B608
        {**_window_params(series, replace(choice, before="")), "chosen": chosen},
    )
    by_series: dict[int, dict[Key, Spot]] = {own: {} for own in series}
    slots: dict[Key, Spot] = {}
    for spot in spots:
        by_series[spot.series][spot.key] = spot
        if spot.series in drawn:
            slots.setdefault(spot.key, spot)
    return by_series, list(slots.values())


def _add_changes(slots: Sequence[Spot], environments: Mapping[int, Environment]) -> None:
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


def slot_of_time(slots: Sequence[Spot], time: datetime) -> int:
    """Return the index of the last slot that is not after this time; -1 where all are."""
    return bisect_right([slot.time for slot in slots], time) - 1


def histories(
    series: Mapping[int, tuple[Experiment, Metric]],
    newest: Point,
    choice: Choice,
    targets: Targets,
    environments: dict[int, Environment],
) -> tuple[dict[int, list[Point]], Point | None]:
    """Return the points of the range of each series, oldest first, and the `newest` one of all, with run,
    environment and targets: 2 statements, 1 more for `environments` that are not known yet."""
    points = fetch_models(
        Point,
        "ORDER BY own.series_id, own.order_time, own.run_id, own.environment_id",
        _window_params(series, choice),
        rows=f"SELECT n.* FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL ({_WINDOW}) n",  # noqa: S608 — a constant  # nosec B608
    )
    runs = by_id(Run, [point.run_id for point in (*points, newest)])
    known = [point for point in (*with_levels(points), newest) if point.run_id in runs]  # else deleted
    environments |= by_id(Environment, {point.environment_id for point in known} - environments.keys())
    attach(known, "run", runs)
    attach(known, "environment", environments)
    by_series: dict[int, list[Point]] = {pk: [] for pk in series}
    for point in known:
        point.show(*series[point.series_id], targets)
        if point is not newest:
            by_series[point.series_id].append(point)
    return by_series, newest if newest.run_id in runs else None
