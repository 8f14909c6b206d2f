"""One experiment: a metric's history, the source of each point, and the same on other devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hud.models import ACTIVE, Environment, Experiment, Measurement, Metric, Run, Series, Upload
from hud.pages import values
from hud.pages.experiment import compilations
from hud.pages.experiment.compilations import Compilations
from hud.pages.hosts.query import Place, places_for
from hud.pages.sql import fetch
from hud.pages.targets import AppliedTarget, Targets
from hud.pages.values import VALUE_COLUMNS, VERDICT_JOIN, MetricValue
from hud.runs.branches import branch_or_default, other_branch

DEFAULT_POINTS = 200
MAX_POINTS = 1000
_SAME = ("suite", "case", "mode", "dtype", "backend", "dynamic")  # of an experiment and its relatives


@dataclass(slots=True, kw_only=True)
class Point(MetricValue):
    """A value in its series: where it came from, and what differs from the point before."""

    host: str  # of its run, like all up to `uploaded`
    source: str
    commit: str
    branch: str
    repo: str
    order_time_source: str  # commit, run or upload: which time places the run in its series
    provenance: str
    created: datetime
    requested_by: str
    uploaded: bool
    environment: Environment = field(init=False)
    changed: list[str] = field(default_factory=list)  # facts that differ from the point before
    same_class: bool = True  # as the newest point: may be its baseline
    file: Upload | None = None  # it came in

    @property
    def other_branch(self) -> str:
        return other_branch(self.branch)

    def to_row(self) -> dict[str, Any]:
        environment = self.environment
        return {
            **MetricValue.to_row(self),
            "placed_by": self.order_time_source,
            "host": self.host,
            "source": self.source,
            "commit": self.commit,
            "branch": branch_or_default(self.branch),
            "file": self.file.filename if self.file else None,
            "environment": environment.fingerprint,
            "environment_class": environment.class_key,
            "torch": environment.torch,
            "torch_git": environment.torch_git,
        }


@dataclass
class History:
    """Points of one series, oldest first, in the order of the series."""

    experiment: Experiment
    metric: Metric
    points: list[Point] = field(default_factory=list)
    target: AppliedTarget | None = None  # of this arch

    @property
    def newest(self) -> Point | None:
        return self.points[-1] if self.points else None

    @property
    def processes(self) -> int:
        return sum(point.processes for point in self.points)

    @property
    def newest_first(self) -> list[Point]:
        return self.points[::-1]

    @property
    def order(self) -> list[str]:
        """Return the kinds of time that order the points."""
        return sorted({point.order_time_source for point in self.points})


@dataclass
class ExperimentPage:
    experiment: Experiment
    metrics: list[MetricValue] = field(default_factory=list)  # the latest value of each metric
    history: History | None = None  # None: nothing was measured yet
    siblings: list[History] = field(default_factory=list)
    shapes: list[Experiment] = field(default_factory=list)  # the same case with other knobs, same arch
    environments: list[Environment] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)  # of the newest point, all its processes
    places: list[Place] = field(default_factory=list)  # where it can be run again
    active: list[Run] = field(default_factory=list)  # reruns of it that have not ended
    more_points: bool = False  # older ones were left out
    compilations: Compilations = field(default_factory=Compilations)

    @property
    def regret(self) -> MetricValue | None:
        """Return the time lost by the autotuner's choices; its note has the interval."""
        return next((value for value in self.metrics if value.metric.name == "autotune_regret"), None)


def read(pk: int, *, metric: str = "", points: int = DEFAULT_POINTS) -> ExperimentPage | None:
    """Return the page, in 12 statements, one more for uploaded points and up to 3 for compilations; None for
    no such experiment.

    `metric` is one of the experiment's; an empty or unknown name means the suite's first.
    """
    experiment = Experiment.objects.filter(pk=pk).first()
    if experiment is None:
        return None
    related = _related(experiment)
    siblings = [one for one in related if one.knobs == experiment.knobs]
    series = _series_by_experiment([experiment, *siblings])
    targets = Targets.read()
    page = ExperimentPage(experiment, places=places_for(experiment))
    page.shapes = [one for one in related if one.knobs != experiment.knobs and _same_device(one, experiment)]
    active = Run.objects.filter(request__experiment=experiment, state__in=ACTIVE)
    page.active = list(active.order_by("-created")[:5])
    own = series.get(experiment.pk, [])
    latest = values.latest(one.pk for one in own)
    page.metrics = values.shown(own, {experiment.pk: experiment}, latest, targets)
    chosen = _choose(own, metric, latest)
    histories = [History(experiment, chosen.metric)] if chosen else []
    wanted = {chosen.pk: histories[0]} if chosen else {}
    for sibling in siblings:
        one = _choose(series.get(sibling.pk, []), chosen.metric.name if chosen else metric)
        if one:
            wanted[one.pk] = History(sibling, one.metric)
    _fill(wanted, points, targets)
    page.history = histories[0] if histories and histories[0].points else None
    page.siblings = [one for one in wanted.values() if one.experiment is not experiment and one.points]
    shown = [history for history in (page.history, *page.siblings) if history]
    page.environments = _distinct(
        point.environment for history in shown for point in reversed(history.points)
    )
    page.samples = _samples(page.history)
    page.more_points = bool(page.history and page.history.processes >= points < MAX_POINTS)
    page.compilations = compilations.read(pk, chosen)
    return page


def _related(experiment: Experiment) -> list[Experiment]:
    """Return the same case on other devices and with other knobs."""
    same = {name: getattr(experiment, name) for name in _SAME}
    found = Experiment.objects.filter(**same).exclude(pk=experiment.pk).order_by("device", "arch")[:200]
    return sorted(found, key=lambda one: (one.arch, len(one.title), one.title))


def _same_device(one: Experiment, other: Experiment) -> bool:
    return (one.device, one.arch) == (other.device, other.arch)


def _series_by_experiment(experiments: Sequence[Experiment]) -> dict[int, list[Series]]:
    """Return the series of each experiment, its suite's main metrics first."""
    found = Series.objects.filter(experiment__in=experiments).select_related("metric")
    suite = experiments[0].suite
    ordered = sorted(found, key=lambda one: values.metric_place(suite, one.metric))
    return {
        experiment.pk: [one for one in ordered if one.experiment_id == experiment.pk]
        for experiment in experiments
    }


def _choose(series: Sequence[Series], name: str, measured: Iterable[int] | None = None) -> Series | None:
    """Return the series of the metric called `name`, else the first one that has measurements."""
    there = [one for one in series if measured is None or one.pk in set(measured)]
    return next((one for one in there if one.metric.name == name), there[0] if there else None)


def _fill(wanted: dict[int, History], points: int, targets: Targets) -> None:
    """Give each history the latest points of its series, oldest first: three statements.

    `points` counts fresh processes: those of one run in one environment are one point.
    """
    rows = fetch(
        Point,
        f"""
        SELECT {VALUE_COLUMNS},
            coalesce(nullif(r.host_name, ''), h.name, '') host, r.source, r.commit,
            r.branch, r.repo, r.order_time_source, r.provenance, r.created,
            coalesce(q.requested_by, '') requested_by,
            r.upload_id IS NOT NULL uploaded
        FROM hud_series s
        JOIN LATERAL (
            SELECT * FROM hud_measurement WHERE series_id = s.id
            ORDER BY order_time DESC, run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
        ) m ON true
        JOIN hud_run r ON r.id = m.run_id
        LEFT JOIN hud_runrequest q ON q.run_id = r.id
        LEFT JOIN hud_host h ON h.id = q.host_id
        {VERDICT_JOIN}
        WHERE s.id = ANY(%(series)s)
        WINDOW point AS (PARTITION BY s.id, m.order_time, m.run_id, m.environment_id)
        ORDER BY s.id, m.order_time, m.run_id, max(m.repeat) OVER point, max(m.side) OVER point,
            m.environment_id, m.repeat, m.side
        """,  # noqa: S608 — constants  # nosec B608
        {"series": list(wanted), "points": points},
    )
    found = values.by_run(rows)
    environments = Environment.objects.in_bulk({point.environment_id for point in found})
    files = Upload.objects.only("filename", "format").in_bulk({point.upload_id for point in found} - {None})
    for point in found:
        history = wanted[point.series_id]
        point.environment = environments[point.environment_id]
        point.file = files.get(point.upload_id or 0)
        history.points.append(point.show(history.experiment, history.metric, targets))
    for history in wanted.values():
        history.target = targets.own(history.experiment, history.metric)
        _compare_neighbours(history)


def _compare_neighbours(history: History) -> None:
    """Set each point's changes from the point before, and whether it has the newest point's class."""
    if history.newest is None:
        return
    if history.target is None:
        history.target = history.newest.own_target
    for point in history.points:
        point.same_class = point.environment.class_key == history.newest.environment.class_key
    for before, point in zip(history.points, history.points[1:], strict=False):
        point.changed = changes(before.environment, point.environment)


def changes(before: Environment, after: Environment) -> list[str]:
    """Return ``torch 2.10.0 → 2.11.0`` for each fact that differs; nested facts by their own names."""
    if before.pk == after.pk:
        return []
    old, new = _flat(before.facts), _flat(after.facts)
    return [
        f"{name.replace('_', ' ')} {old.get(name) or 'unknown'} → {new.get(name) or 'unknown'}"
        for name in [*new, *(name for name in old if name not in new)]
        if (old.get(name) or "") != (new.get(name) or "")
    ]


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, fact in facts.items():
        flat.update(fact if isinstance(fact, dict) else {name: fact})
    return flat


def _distinct(environments: Iterable[Environment]) -> list[Environment]:
    return list({environment.pk: environment for environment in environments}.values())


def _samples(history: History | None) -> list[float]:
    """Return all samples of the newest point, process after process."""
    if history is None or history.newest is None:
        return []
    newest = history.newest
    found = Measurement.objects.filter(
        run_id=newest.run_id,
        series_id=newest.series_id,
        environment_id=newest.environment_id,
        order_time=newest.order_time,
    ).order_by("repeat", "side")
    return [sample for samples in found.values_list("samples", flat=True) for sample in samples or []]
