"""Nights, the two sides that a table compares, and the values of their runs.

A night is the runs of one stream and branch on one commit that began within 24 hours, whatever their suites
and schedules; reruns and A/B comparisons belong to none.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from django.db.models import Count

from hud.models import ACTIVE, NEVER_RAN, STATUS_CODES, RunSubject, Stream, Task
from hud.points import sides
from hud.points.kept import Kept
from hud.points.sides import BadSide
from hud.runs.branches import stored_names
from hud.sql import fetch_tuples
from runner.suites import CEILINGS, SUITES

SHORT_COMMIT = 7  # characters
_DAYS = 120  # before the newest run
_HASH = re.compile(r"[0-9a-f]{12,64}")
_LONGEST = timedelta(hours=24)  # of a night's runs on one commit
_GAP = timedelta(hours=6)  # between runs without a commit that ends a night
_AT_LATEST = timedelta(hours=36)
_MOST_RUNS = 3000  # of one side
_PIECE = 30  # nights that are read together
_MOST_NIGHTS = 300  # that a table looks through
NEVER = [STATUS_CODES[name] for name in NEVER_RAN]
_MOST_KEPT = 600  # nights in the memory of a process, a few 10 kB each

PASSES, SPEEDUP, COMPILE, MEMORY = "accuracy", "speedup", "cold_compile", "memory"
PREFERRED: Mapping[str, tuple[str, ...]] = {  # metrics of each column, device time first
    SPEEDUP: ("device_speedup", "speedup"),
    COMPILE: ("cold_compile_s", "compilation_latency"),
    MEMORY: ("compression_ratio", "peak_memory_ratio"),
}
_PEAKS = ("eager_peak_memory_bytes", "compiled_peak_memory_bytes")  # their ratio is the last
_METRICS = (PASSES, *PREFERRED[SPEEDUP], *PREFERRED[COMPILE], "compression_ratio", *_PEAKS)
# The suites of a table: those that compare with eager and check the result.
MODEL_SUITES = [name for name, suite in SUITES.items() if {PASSES, SPEEDUP} <= set(suite.headline_metrics)]


@dataclass(frozen=True)
class Subject:
    """The experiments that a page shows: those on one arch, in one mode and dtype."""

    arch: str
    mode: str
    dtype: str


class NightRun(NamedTuple):
    """A run as it is grouped into nights."""

    pk: int
    time: datetime  # its place in every series
    began: datetime
    commit: str
    active: bool  # queued or running
    version: str = ""  # of its row, which changes with its points


@dataclass(frozen=True)
class Night:
    """The runs of a night, or of another side of a comparison."""

    side: str = field(compare=False)  # as the URL has it
    names: tuple[str, str] = field(compare=False)  # its date, and the minute that it began
    title: str = field(compare=False)
    time: datetime
    began: datetime  # its first run
    commit: str
    runs: tuple[int, ...]
    complete: bool = True  # every run has ended, in whatever state
    versions: tuple[str, ...] = ()

    @property
    def short_commit(self) -> str:
        return self.commit[:SHORT_COMMIT]

    @property
    def as_side(self) -> str:
        """Return the side for pages that know no times of day."""
        if self.commit:
            return f"commit:{self.commit}"
        return f"run:{self.runs[0]}" if len(self.runs) == 1 else f"night:{self.time.date()}"

    def is_default(self, now: datetime) -> bool:
        """Return whether a page may choose it by itself: when it is complete, or 36 hours after it began."""
        return self.complete or now - self.began > _AT_LATEST


Block: TypeAlias = tuple[str, str]  # suite and backend, as a table shows it
Values: TypeAlias = dict[str, dict[int, float | None]]  # metric → experiment; None where it failed
Results: TypeAlias = dict[Block, Values]  # what the runs of one night measured
OTHER_SUITES: Block = "", ""  # of a night without models that measured other suites: with no values


def _runs(stream: Stream, condition: str, params: Mapping[str, Any]) -> list[NightRun]:
    """Return the runs `r` of a stream that a condition chooses, in order: 1 statement. A commit's time is not
    when its runs began; what was uploaded with no other time began then."""
    rows = fetch_tuples(
        f"""
        SELECT r.id, r.order_time,
            CASE r.order_time_source WHEN 'commit' THEN r.created ELSE r.order_time END,
            r.commit, r.state = ANY(%(active)s), concat(r.xmin, r.ctid)
        FROM hud_run r WHERE r.stream_id = %(stream)s AND r.base_interpreter = '' AND {condition}
        ORDER BY r.order_time, r.id
        """,  # noqa: S608 — conditions of this module  # nosec B608
        {**params, "stream": stream.pk, "active": list(ACTIVE)},
    )
    return [NightRun(*row) for row in rows]


def read(stream: Stream, branch: str = "") -> list[Night]:
    """Return the nights of a stream's branch, oldest first: 1 statement. Those that come after tomorrow are
    left out: they were uploaded while the clock of this machine was wrong."""
    recent = """NOT r.rerun AND r.branch = ANY(%(branches)s) AND r.order_time < now() + interval '1 day'
        AND r.order_time > (
            SELECT max(order_time) FROM hud_run
            WHERE stream_id = %(stream)s AND branch = ANY(%(branches)s)
                AND order_time < now() + interval '1 day') - %(days)s"""
    params = {"branches": stored_names(branch), "days": timedelta(days=_DAYS)}
    return group(_runs(stream, recent, params))


def group(runs: Iterable[NightRun]) -> list[Night]:
    """Return the nights of the runs of one stream and branch, oldest first; `runs` come in their order.

    Runs on one commit that began within 24 hours of the first are one night; without a commit, runs with
    gaps of less than 6 hours.
    """
    groups: list[list[NightRun]] = []
    newest: dict[str, list[NightRun]] = {}  # by commit: the night that a run may join
    for run in runs:
        own = newest.get(run.commit)
        if own is None or (
            run.began - own[0].began > _LONGEST if run.commit else run.began - own[-1].began >= _GAP
        ):
            own = newest[run.commit] = []
            groups.append(own)
        own.append(run)
    return named(sorted((_night(tuple(own)) for own in groups), key=lambda night: night.time))


@lru_cache(maxsize=1024)
def _night(runs: tuple[NightRun, ...]) -> Night:
    in_order = sorted(runs, key=lambda run: run.pk)
    newest, began = runs[-1], min(run.began for run in runs)
    iso_date = str(newest.time.date())
    return Night(
        side=iso_date,
        names=(iso_date, f"{began:%Y-%m-%dT%H:%M}"),
        title=day(newest.time),
        time=newest.time,
        began=began,
        commit=newest.commit,
        runs=tuple(run.pk for run in in_order),
        complete=not any(run.active for run in runs),
        versions=tuple(run.version for run in in_order),
    )


def named(nights: Sequence[Night]) -> list[Night]:
    """Name each night by what none of the others has: its date, its commit, or the minute that it began."""
    dates = Counter(night.names[0] for night in nights)
    commits = Counter(night.commit for night in nights)

    def name_of(night: Night) -> str:
        date, minute = night.names
        if dates[date] == 1:
            return date
        if night.commit and commits[night.commit] == 1:
            return f"commit:{night.commit[:12] if _HASH.fullmatch(night.commit) else night.commit}"
        return f"night:{minute}"

    return [
        night if (name := name_of(night)) == night.side else replace(night, side=name) for night in nights
    ]


def of_day(stream: Stream, day: str) -> list[Night]:
    """Return the stream's nights of a date such as 2026-11-20, or the one that began at 2026-11-20T07:15,
    oldest first: 1 statement."""
    return [night for night in read(stream) if day in night.names]


def side(text: str, nights: Sequence[Night], subject: Subject, stream: Stream) -> Night | None:
    """Return the side that a URL names, among the stream's nights with results of the subject: a date,
    ``night:2026-11-20``, ``commit:abc123``, ``latest:main`` or ``run:12``; None where there is none."""
    try:
        chosen = sides.parse(text)
    except BadSide:
        return None
    if chosen.filters or chosen.kind == "date":
        return None
    if chosen.kind == "latest":
        return _newest(read(stream, chosen.name) if chosen.name else nights, subject, stream)
    if chosen.kind == "night":
        night = _newest([night for night in nights if chosen.name in night.names], subject, stream)
        return replace(night, side=text) if night else None
    ids = sides.runs_of(chosen, stream).values_list("pk", flat=True)[:_MOST_RUNS]
    runs = tuple(_runs(stream, "r.id = ANY(%(ids)s)", {"ids": list(ids)}))
    if not runs or len({run.commit for run in runs} - {chosen.name}) > 1:  # none, or several commits
        return None
    night = _night(runs)
    return replace(night, side=text, title=f"run {chosen.name}" if chosen.kind == "run" else night.title)


def _newest(nights: Sequence[Night], subject: Subject, stream: Stream) -> Night | None:
    return next(reversed(measured(nights, subject, stream, enough=bool)), None)


def measured(
    nights: Sequence[Night], subject: Subject, stream: Stream, *, enough: Callable[[Sequence[Night]], bool]
) -> dict[Night, Results]:
    """Return the nights with results of the subject, whatever their suites, oldest first, from the newest
    back until there are `enough`: 1 statement for each `_PIECE` of nights, among them some that this process
    has not read yet, 2 where some of these have no models."""
    by_night: dict[Night, Results] = {}
    for end in range(len(nights), max(len(nights) - _MOST_NIGHTS, 0), -_PIECE):
        piece = nights[max(end - _PIECE, 0) : end]
        read_now = dict(zip(piece, results(piece, subject, stream), strict=True))
        by_night = {night: values for night, values in read_now.items() if values} | by_night
        if enough(list(by_night)):
            break
    return by_night


def _with_points(runs: list[int], subject: Subject, stream: Stream) -> set[int]:
    """Return the runs that have a point of the subject, ceilings aside: 1 statement."""
    noted = RunSubject.objects.filter(run__in=runs, stream=stream, **asdict(subject))
    return set(noted.exclude(suite=CEILINGS).values_list("run", flat=True))


def progress(night: Night) -> list[tuple[str, int, int]]:
    """Return of each suite how many tasks of a growing night have ended, and how many were planned: 1
    statement."""
    suites = Task.objects.filter(run__in=night.runs).values_list("spec__suite")
    return list(suites.annotate(Count("finished"), planned=Count("pk")).order_by("-planned", "spec__suite"))


def day(at: datetime | date) -> str:
    return f"{at.day} {at:%b}"


_kept = Kept(_MOST_KEPT, Results)


def results(nights: Sequence[Night], subject: Subject, stream: Stream) -> list[Results]:
    """Return the results of each night: 1 statement for those that this process does not know, 3 at most for
    those that nobody has read yet.

    A night whose runs are over is kept until one of its points changes.
    """
    keys = [(stream.pk, subject, night.runs, night.versions) for night in nights]
    known, settled = _kept.known(keys), dict[Any, Results]()
    missing = {key: night for key, night in zip(keys, nights, strict=True) if key not in known}
    read_now = _read_results(list(missing.values()), subject, stream) if missing else []
    for (key, night), (values, is_settled) in zip(missing.items(), read_now, strict=True):
        known[key] = values
        if is_settled and night.complete:
            settled[key] = values
    _kept.keep(settled)
    return [known[key] for key in keys]


UNDECIDED = "undecided "  # before the name of a metric: the values of those that may not decide
FAILED = "failed "  # likewise: those of which a process failed, also where others give a value
# The value of point p of metric k in a table: NULL where the case failed, NaN where it may not decide, of a
# check 1 where it passed.
_VALUE = f"""
    CASE WHEN p.status <> 0 AND (p.value IS NULL OR k.name = '{PASSES}') THEN NULL
        WHEN k.name = '{PASSES}' THEN coalesce(p.value, 1)
        WHEN p.quality IS NOT NULL THEN 'NaN' ELSE p.value END
"""


def _read_results(nights: Sequence[Night], subject: Subject, stream: Stream) -> list[tuple[Results, bool]]:
    """Return the results of each night, and whether each series has only one point in it."""
    runs = [(run, index) for index, night in enumerate(nights) for run in night.runs]
    params = {
        **asdict(subject),
        "stream": stream.pk,
        "metrics": list(_METRICS),
        "suites": MODEL_SUITES,
        "runs": [run for run, _place in runs],
        "places": [index for _run, index in runs],
        "never": NEVER,
    }
    rows = fetch_tuples(
        f"""
        WITH wanted AS MATERIALIZED (
            SELECT s.id, s.experiment_id, e.suite, e.backend, e.dynamic, s.metric_id
            FROM hud_experiment e JOIN hud_series s ON s.experiment_id = e.id AND s.stream_id = %(stream)s
            WHERE e.arch = %(arch)s AND e.mode = %(mode)s AND e.dtype = %(dtype)s
                AND e.suite = ANY(%(suites)s)
        )
        SELECT night.place, w.suite, w.backend, w.dynamic, k.name, array_agg(w.experiment_id),
            array_agg({_VALUE}), coalesce(array_agg(w.experiment_id) FILTER (WHERE p.status <> 0), '{{}}'),
            jsonb_object_agg(w.experiment_id, p.value) FILTER (WHERE p.quality IS NOT NULL)::text
        FROM unnest(%(runs)s::int[], %(places)s::int[]) AS night(run_id, place)
        JOIN hud_point p ON p.run_id = night.run_id AND p.status <> ALL(%(never)s)
        JOIN wanted w ON w.id = p.series_id
        JOIN hud_metric k ON k.id = w.metric_id AND k.name = ANY(%(metrics)s)
        GROUP BY 1, 2, 3, 4, 5
        """,  # noqa: S608 — constants of this module, as below  # nosec B608
        params,
    )
    by_night: list[Results] = [{} for _night in nights]
    repeated: dict[tuple[int, str, int], Values] = {}  # night, metric, experiment → the values of its block
    for index, suite, backend, dynamic, metric, experiments, values, failed, pale in rows:
        block = suite, f"{backend}, dynamic" if dynamic else backend
        measured = dict(zip(experiments, values, strict=True))
        own = by_night[index].setdefault(block, {})
        own |= {metric: measured, FAILED + metric: dict.fromkeys(failed)}
        if pale:
            own[UNDECIDED + metric] = {int(pk): value for pk, value in json.loads(pale).items()}
        if len(measured) < len(experiments):
            counts = Counter(experiments)
            repeated.update({(index, metric, pk): own for pk in measured if counts[pk] > 1})
    if repeated:
        _choose(repeated, params)
    for of_night in by_night:
        for measured_metrics in of_night.values():
            _add_memory_ratio(measured_metrics)
    if other := [run for run, index in runs if not by_night[index]]:
        measured_runs = _with_points(other, subject, stream)
        for night, of_night in zip(nights, by_night, strict=True):
            if not of_night and not measured_runs.isdisjoint(night.runs):
                of_night[OTHER_SUITES] = {}
    several = {index for index, _metric, _experiment in repeated}
    return [(of_night, index not in several) for index, of_night in enumerate(by_night)]


def _choose(repeated: Mapping[tuple[int, str, int], Values], params: dict[str, Any]) -> None:
    """Choose of several points in a night that of the host of the series' level, else the newest: 1
    statement."""
    rows = fetch_tuples(
        f"""
        SELECT own.place, k.name, s.experiment_id, {_VALUE}, p.status <> 0
        FROM unnest(%(own_places)s::int[], %(own_metrics)s::text[], %(experiments)s::int[])
            AS own(place, metric, experiment_id)
        JOIN hud_metric k ON k.name = own.metric
        JOIN hud_series s ON s.experiment_id = own.experiment_id AND s.metric_id = k.id
            AND s.stream_id = %(stream)s
        JOIN unnest(%(runs)s::int[], %(places)s::int[]) AS night(run_id, place) ON night.place = own.place
        JOIN hud_point p ON p.run_id = night.run_id AND p.series_id = s.id AND p.status <> ALL(%(never)s)
        JOIN hud_run r ON r.id = p.run_id
        LEFT JOIN LATERAL (
            SELECT host.host_name FROM hud_seriesstate t
            JOIN hud_run host ON host.id = (t.level->>'last_run')::int
            WHERE t.series_id = s.id ORDER BY t.order_time DESC LIMIT 1
        ) level ON true
        ORDER BY coalesce(r.host_name = level.host_name, false), p.order_time, p.run_id, p.environment_id
        """,  # noqa: S608  # nosec B608
        {
            **params,
            "own_places": [index for index, _metric, _experiment in repeated],
            "own_metrics": [metric for _place, metric, _experiment in repeated],
            "experiments": [experiment for _place, _metric, experiment in repeated],
        },
    )
    for index, metric, experiment, value, is_failed in rows:  # the last one counts
        own = repeated[index, metric, experiment]
        own[metric][experiment] = value
        own[FAILED + metric].pop(experiment, None)
        own[FAILED + metric] |= {experiment: None} if is_failed else {}


def _add_memory_ratio(measured: Values) -> None:
    eager, compiled = (measured.pop(name, {}) for name in _PEAKS)
    both = ((experiment, eager.get(experiment), peak) for experiment, peak in compiled.items())
    if ratios := {experiment: value / peak for experiment, value, peak in both if peak and value is not None}:
        measured["peak_memory_ratio"] = {**ratios}
