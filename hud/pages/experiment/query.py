"""One experiment: its headline metrics over time, its state, and the same case elsewhere."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import zip_longest
from typing import Any

from django.http import Http404
from django.utils import timezone

from hud.corrections import notes
from hud.hosts.registration import is_visible, present_accelerators
from hud.judging.regressions.commits import area_of
from hud.models import (
    ACTIVE,
    Annotation,
    Environment,
    Experiment,
    KnownFailure,
    Metric,
    Point,
    Run,
    Series,
    Stream,
)
from hud.pages.charts import multiples
from hud.pages.charts.choice import MAX_POINTS, Choice
from hud.pages.charts.multiples import MOST_OVERLAYS, Multiples
from hud.pages.experiment import compilations
from hud.pages.experiment.compilations import Compilations
from hud.points import expectations
from hud.points import read as points
from hud.points.columns import COLUMNS, SuiteColumn, metric_names
from hud.points.facts import changes
from hud.points.targets import Targets
from hud.runs import matching
from hud.runs.places import Place, places_for
from hud.runs.queue import usual_by_place
from hud.runs.requests import spec_of
from hud.sql import attach, by_id, fetch, fetch_models, int_array
from runner.schema.devices import is_named
from runner.schema.metrics import device_time_of
from runner.schema.records import SUCCESS
from runner.schema.suite import BadRequest, TaskSpec

_MOST_RELATED = 500
_MOST_OPTIONS = 60  # of one picker
_IN_PICKERS = ("mode", "dtype", "backend", "arch")


@dataclass(frozen=True)
class Option:
    text: str
    experiment: int
    also: str  # what else differs


@dataclass(frozen=True)
class Picker:
    """A part of the identity, with the other values it has for this case."""

    name: str
    text: str
    options: list[Option]


@dataclass(frozen=True)
class Origin:
    """The origin of a point: the samples of all its processes, the file, and who asked for its run."""

    samples: list[float] = field(default_factory=list)
    upload: int | None = None
    filename: str = ""
    format: str = ""
    requested_by: str = ""


Backend = tuple[Experiment, list[Point | None]]  # the newest values of a case with one backend, by columns


@dataclass(frozen=True)
class TableRow:
    point: Point
    changed: list[str]  # facts of its environment that differ from those of the point before
    same_class: bool  # as the newest point: may be its baseline


@dataclass
class ExperimentPage:
    experiment: Experiment
    stream: Stream
    choice: Choice
    pickers: list[Picker] = field(default_factory=list)
    metrics: list[Point] = field(default_factory=list)  # the latest value of each metric
    metric: Metric | None = None  # that is shown; None: nothing was measured yet
    newest: Point | None = None  # of it that counts, also outside the range
    histories: list[list[Point]] = field(default_factory=list)  # of it here, for data on other devices too
    points: list[TableRow] = field(default_factory=list)  # newest first
    total: int = 0  # points of the range
    older: tuple[datetime, int] | None = None  # time and run before which the next part of the table begins
    charts: Multiples = field(default_factory=Multiples)
    notes: list[Annotation] = field(default_factory=list)
    backends: list[Backend] = field(default_factory=list)  # this one first; none without others
    columns: list[SuiteColumn] = field(default_factory=list)  # of the backends
    overlaid: list[Experiment] = field(default_factory=list)  # backends drawn beside this one
    devices: list[Point] = field(default_factory=list)  # newest value of the metric on other devices
    origin: Origin = field(default_factory=Origin)  # of the newest point
    places: list[Place] = field(default_factory=list)  # where it can be run again
    spec: TaskSpec | None = None  # of a rerun on its device
    impossible: str = ""  # why there is none
    not_offered: str = ""  # why no attached host offers its suite
    cannot_run: str = ""  # why no attached host can start it, though some offer the suite
    active: list[Run] = field(default_factory=list)  # reruns of it that have not ended
    more_points: bool = False  # older ones were left out
    compilations: Compilations = field(default_factory=Compilations)
    known_failure: KnownFailure | None = None  # as a person marked it

    @property
    def fails(self) -> bool:
        return any(point.status not in SUCCESS and not point.never_ran for point in self.metrics)

    @property
    def regret(self) -> Point | None:
        """Return the time lost by the autotuner's choices; its note has the interval."""
        return next((value for value in self.metrics if value.metric.name == "autotune_regret"), None)

    @property
    def order(self) -> list[str]:
        """Return the kinds of time that order the points."""
        return sorted({point.run.order_time_source for point in self.histories[0]})

    @property
    def environments(self) -> list[Environment]:
        """Return the environments of all points, the newest first."""
        environments = [point.environment for history in self.histories for point in reversed(history)]
        return list({environment.pk: environment for environment in environments}.values())

    @cached_property
    def target(self) -> str | None:
        """Return the only target of the points in the table, '' for several, None where none has any."""
        targets = [row.point.targets for row in self.points]
        names = {target.brief if target.own else "" for each in targets for target in each}
        several = len(names) > 1 or any(len(each) > 1 for each in targets)
        return None if not names else "" if several else names.pop()

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest value of the compilations in the table."""
        values = [value for row in self.points for value in row.point.compilation_values if value is not None]
        return (min(values), max(values)) if values else (0.0, 1.0)


def read(pk: int, stream: Stream, choice: Choice, *, as_data: bool = False) -> ExperimentPage:
    """Return the page of an experiment in a stream, in 21 statements, one more where it can run, up to 3 for
    compilations and 2 for regressions. Raise Http404 for no such experiment.

    `as_data` reads what the data views say: all points, those of other devices too, and neither charts nor
    places.
    """
    alike = """WHERE (suite, "case") = (SELECT suite, "case" FROM hud_experiment WHERE id = %(pk)s)
        AND (id = %(pk)s
            OR EXISTS (SELECT FROM hud_series WHERE experiment_id = own.id AND stream_id = %(stream)s))
        ORDER BY id <> %(pk)s, id LIMIT %(most)s"""
    same_case = fetch_models(Experiment, alike, {"pk": pk, "stream": stream.pk, "most": 1 + _MOST_RELATED})
    if not same_case:
        raise Http404(f"no experiment has the id {pk}")
    experiment, related = same_case[0], same_case[1:]
    backends = _same_but(experiment, related, "backend")
    devices = _same_but(experiment, related, "device", "arch")
    series = _series_by_experiment([experiment, *backends, *devices], stream)
    targets = Targets.read()
    page = ExperimentPage(experiment, stream, choice, pickers(experiment, related))
    page.notes = list(notes.of_experiment(experiment)[: notes.MOST])
    own = series[pk]
    compared = metric_names(COLUMNS)
    beside = [row for other in backends for row in series[other.pk] if row.metric.name in compared]
    elsewhere = [row for other in devices for row in series[other.pk]]
    latest = points.latest((row.pk for row in (*own, *beside, *elsewhere)), choice.branch)
    page.metrics = points.shown(own, {pk: experiment}, latest, targets)
    chosen = _choose(own, choice.metric, latest)
    overlaid = choice.overlay.split(",")
    page.overlaid = [backend for backend in backends if str(backend.pk) in overlaid][:MOST_OVERLAYS]
    if chosen:
        page.metric = chosen.metric
        wanted = {chosen.pk: (experiment, chosen.metric)}
        for other in devices:
            row = _choose(series[other.pk], chosen.metric.name, latest)
            if row:
                page.devices.append(latest[row.pk].show(other, row.metric, targets))
                if as_data:
                    wanted[row.pk] = other, row.metric
        if not as_data:
            page.charts = multiples.read(
                experiment,
                chosen,
                series,
                overlaid=page.overlaid,
                choice=choice,
                targets=targets,
                latest=latest,
            )
        # of a table one more: its last row is compared with the point before
        most = choice.points if as_data else min(choice.points, choice.rows + 1)
        points_of, page.newest = multiples.histories(
            wanted, latest[chosen.pk], replace(choice, points=most), targets, page.charts.environments
        )
        page.histories = list(points_of.values())
        if not as_data:
            multiples.add_ceilings(page.charts.rows, page.metrics)
            _add_table(page)
    shown = [*page.metrics, *(point for each in page.histories for point in each)]
    expectations.add(stream.pk, [*shown, page.newest] if page.newest else shown)
    page.backends, page.columns = _backend_lines(experiment, backends, series, latest, targets)
    if as_data:
        page.compilations = compilations.read(pk, stream, own, chosen, compare=False)
        return page
    page.origin = _origin_of(page.newest)
    regression, base, head = page.charts.active, choice.base, choice.head
    if regression and base is None and head is None and not area_of(regression.series.metric.name):
        base, head = regression.last_good_run_id, regression.first_run_id
    page.compilations = compilations.read(pk, stream, own, chosen, base=base, head=head)
    _add_actions(page)
    return page


def pickers(experiment: Experiment, related: Sequence[Experiment]) -> list[Picker]:
    """Return a picker for each part of the identity that says something."""
    own, others = _parts(experiment), [_parts(experiment) for experiment in related]
    differing = [[name for name in own | parts if own.get(name) != parts.get(name)] for parts in others]
    nearest = sorted(zip(differing, related, others, strict=True), key=lambda parts: len(parts[0]))
    shown = []
    for name in dict.fromkeys([*own, *(name for parts in others for name in parts)]):
        text = own.get(name, "default")
        options: dict[str, Option] = {}
        for names, near, parts in nearest:
            other = parts.get(name, "default")
            if other != text and (name != "arch" or is_named(other)):
                also = ", ".join(also for also in names if also != name)
                options.setdefault(other, Option(other, near.pk, also))
        if text or options:
            ordered = sorted(options.values(), key=lambda one: (bool(one.also), len(one.text), one.text))
            shown.append(Picker(name, text or "unknown", ordered[:_MOST_OPTIONS]))
    return shown


def _same_but(experiment: Experiment, related: Sequence[Experiment], *names: str) -> list[Experiment]:
    """Return the experiments that differ in nothing but these parts of the identity, in their order."""
    same = [name for name in Experiment.IDENTITY if name not in names]
    others = [one for one in related if all(getattr(one, name) == getattr(experiment, name) for name in same)]
    return sorted(others, key=lambda other: [getattr(other, name) for name in names])


def _parts(experiment: Experiment) -> dict[str, Any]:
    """Return each part of the identity as text; the arch stands for the device where it is known."""
    parts: dict[str, Any] = {name: str(value) for name, value in sorted(experiment.knobs.items())}
    parts |= {name: getattr(experiment, name) for name in _IN_PICKERS}
    parts["arch"] = parts["arch"] or experiment.device
    parts["shapes"] = "dynamic" if experiment.dynamic else "static"
    return parts


def _add_table(page: ExperimentPage) -> None:
    """Add the newest points of the range as a table, and whether there are older ones."""
    rows = page.choice.rows
    page.total = len(page.charts.rows[0].spots) if page.charts.rows else 0
    page.more_points = page.total >= page.choice.points < MAX_POINTS
    newest_first = page.histories[0][::-1]
    while rows < len(newest_first) and _place(newest_first[rows]) == _place(newest_first[rows - 1]):
        rows += 1  # one run in two environments
    class_key = page.newest.environment.class_key if page.newest else None
    for point, before in zip_longest(newest_first[:rows], newest_first[1 : rows + 1]):
        changed = changes(before.environment, point.environment) if before else []
        same_class = class_key in (None, point.environment.class_key)
        page.points.append(TableRow(point, changed, same_class))
    page.older = _place(newest_first[rows - 1]) if rows < len(newest_first) else None


def _place(point: Point) -> tuple[datetime, int]:
    return point.order_time, point.run_id


def _add_actions(page: ExperimentPage) -> None:
    """Add its reruns that have not ended, its known failure, where it can be run, its task, or why there is
    none, why no attached host offers the suite, and why none can start this case: 3 statements."""
    params = {"stream": page.stream.pk, "experiment": page.experiment.pk, "active": list(ACTIVE)}
    reruns = """WHERE id IN (SELECT run_id FROM hud_runrequest WHERE experiment_id = %(experiment)s)
        AND stream_id = %(stream)s AND state = ANY(%(active)s) ORDER BY created DESC LIMIT 5"""
    page.active = fetch_models(Run, reruns, params)
    marked = "WHERE stream_id = %(stream)s AND experiment_id = %(experiment)s"
    failures = fetch_models(KnownFailure, marked, params)
    page.known_failure = next(iter(failures), None)
    experiment, present, now = page.experiment, present_accelerators(), timezone.now()
    page.places = places_for(experiment, present)
    accelerators = [accelerator for accelerator in present if is_visible(accelerator.host, now)]
    lacks = matching.reasons_of([experiment.suite], accelerators)
    page.not_offered = lacks.get(experiment.suite, "")
    try:
        page.spec = spec_of(experiment, device=experiment.device)
    except BadRequest as error:
        page.impossible = str(error)
        return
    offering = [row for row in accelerators if experiment.suite in row.catalog.get("suites", [])]
    page.cannot_run = matching.missing_packages([page.spec], offering) if offering else ""
    if page.places and not page.cannot_run:
        took_s = usual_by_place(page.spec)
        page.places = [
            replace(one, process_s=took_s.get((one.host.pk if one.host else None, one.device, one.arch)))
            for one in page.places
        ]


def _series_by_experiment(experiments: Sequence[Experiment], stream: Stream) -> dict[int, list[Series]]:
    """Return the stream's series of each experiment, its suite's main metrics first: 2 statements."""
    ids = int_array(experiment.pk for experiment in experiments)
    wanted = "WHERE experiment_id = ANY(%(ids)s::int[]) AND stream_id = %(stream)s"
    models = fetch_models(Series, wanted, {"ids": ids, "stream": stream.pk})
    attach(models, "metric", by_id(Metric, {row.metric_id for row in models}))
    by_experiment: dict[int, list[Series]] = {experiment.pk: [] for experiment in experiments}
    suite = experiments[0].suite
    for row in sorted(models, key=lambda row: points.metric_place(suite, row.metric)):
        by_experiment[row.experiment_id].append(row)
    return by_experiment


def _choose(series: Sequence[Series], name: str, measured: Container[int]) -> Series | None:
    """Return the series of the metric called `name`, else the first one that has measurements, by device time
    where there is such; a status only where there is nothing else."""
    there = {row.metric.name: row for row in series if row.pk in measured}
    if name in there or not there:
        return there.get(name)
    first = next((name for name, row in there.items() if row.metric.kind != "status"), next(iter(there)))
    return there[device_time_of(first, there)]


def _backend_lines(
    experiment: Experiment,
    backends: Sequence[Experiment],
    series: Mapping[int, Sequence[Series]],
    latest: Mapping[int, Point],
    targets: Targets,
) -> tuple[list[Backend], list[SuiteColumn]]:
    """Return a line for each backend of this case that has results, this one's first, and their columns."""
    shown = {
        one: {
            own.metric.name: latest[own.pk].show(one, own.metric, targets)
            for own in series[one.pk]
            if own.pk in latest
        }
        for one in (experiment, *backends)
    }
    columns = [one for one in COLUMNS if any(by_name.keys() & one.metrics for by_name in shown.values())]
    lines = [(one, [column.cell(by_name) for column in columns]) for one, by_name in shown.items()]
    lines = [line for line in lines if any(line[1])]
    return (lines, columns) if len(lines) > 1 else ([], [])


def _origin_of(point: Point | None) -> Origin:
    """Return where a point came from, with the samples of each process in turn: 1 statement."""
    if point is None:
        return Origin()
    processes = fetch(
        Origin,
        """
        SELECT coalesce(m.samples, '{}'), u.id, u.filename, u.format, q.requested_by FROM hud_measurement m
        LEFT JOIN hud_upload u ON u.id = m.upload_id LEFT JOIN hud_runrequest q ON q.run_id = m.run_id
        WHERE m.run_id = %(run)s AND m.series_id = %(series)s AND m.environment_id = %(environment)s
            AND m.order_time = %(time)s
        ORDER BY m.repeat
        """,
        {
            "run": point.run_id,
            "series": point.series_id,
            "environment": point.environment_id,
            "time": point.order_time,
        },
    )
    samples = [sample for process in processes for sample in process.samples]
    return replace(processes[-1], samples=samples) if processes else Origin()  # the raw values were dropped
