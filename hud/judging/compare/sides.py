"""The sides of a comparison: results of the runs of one night, commit or run; of one of points,
`run:12/experiment:5/compilation:2`, their compilations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db.models import QuerySet

from hud.models import TERMINAL, Compilation, Environment, Experiment, Run, Stream
from hud.points import nights, sides
from hud.points.nights import Night
from hud.points.sides import EXPERIMENT_KINDS, BadSide, runs_of, stream_of
from hud.points.streams import night_of
from hud.points.targets import arch_name
from hud.runs.branches import branch_or_default
from hud.sql import fetch, fetch_models, fetch_tuples
from hud.tables.table import Column, DataTable

MOST_SIDES = 4
_NIGHT = timedelta(hours=24)
_MOST_RUNS, _MOST_OFFERED = 1000, 60
SIDE = DataTable(
    "side=text stream",
    Column("runs", value=lambda side: side.runs[:100]),
    Column("run_count", value=lambda side: len(side.runs)),
    "commit=newest.commit branch host=newest.host_name",
    Column("from", value=lambda side: side.start.isoformat()),
    Column("to", value=lambda side: side.newest.order_time.isoformat()),
)


@dataclass(frozen=True)
class ComparedSide:
    """One side. `newest` is the run that stands for it."""

    text: str
    kind: str
    name: str
    newest: Run
    runs: tuple[int, ...]
    start: datetime
    ab_side: int | None = None  # of an A/B run
    filters: Mapping[str, str] = field(default_factory=dict)
    environments: tuple[int, ...] | None = None  # of the named torch; None: any

    @property
    def subject(self) -> dict[str, str]:
        """Return the parts of an experiment's identity that it names."""
        return {kind: self.filters[kind] for kind in EXPERIMENT_KINDS if kind in self.filters}

    @property
    def title(self) -> str:
        named = [arch_name(name) if kind == "arch" else name for kind, name in self.filters.items()]
        if self.kind == "run":
            runs = f"Run {self.newest.pk}"
        elif self.kind == "commit":
            runs = f"Commit {self.newest.commit[:10]}"
        elif self.kind == "latest":
            runs = "" if named else f"Latest on {self.branch}"
        else:
            runs = f"{'As of' if self.kind == 'date' else 'Night of'} {self.name}"
        return ", ".join(filter(None, (*named, runs)))

    @property
    def about(self) -> str:
        """Return what tells the side apart: title of the run, or over how many runs and days it reaches."""
        end = self.newest.order_time
        if self.kind in {"run", "commit"} and len(self.runs) == 1:
            own = f"{end:%-d %b %Y %H:%M}"
            if self.ab_side is not None:
                name = self.newest.candidate if self.ab_side else self.newest.base_interpreter
                return f"{'candidate' if self.ab_side else 'baseline'} {name}, {own}"
            return f"{self.newest.title}, {own}" if self.newest.title else own
        runs = f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}"
        days = dict.fromkeys(f"{day:%-d %b}" for day in (self.start, end))
        return f"{runs}, {' to '.join(days)} {end:%Y}"

    @property
    def branch(self) -> str:
        return branch_or_default(self.newest.branch)

    @property
    def stream(self) -> str:
        return self.newest.stream.name


def resolve(text: str, stream: Stream, subject: Mapping[str, str], *, is_base: bool) -> ComparedSide:
    """Return the side: 1 statement, and those of `night_of` for a night or `latest:`, 1 for each of a torch,
    a stream and other results. `subject` is the arch, mode and dtype that are compared; `is_base` chooses the
    side of an A/B run. Raise BadSide."""
    named = sides.parse(text)
    kind, name, filters = named.kind, named.name, named.filters
    if named != sides.Side(kind, name, filters):
        raise BadSide(f"{text[:80]!r} is a side of one experiment, which What changed compares", 400)
    environments = environments_of(filters["torch"]) if "torch" in filters else None
    night: Night | None = None
    if kind == "run":
        with_stream = "JOIN hud_stream stream ON stream.id = own.stream_id WHERE own.id = %(run)s"
        rows = fetch_models(Run, with_stream, {"run": name}, stream=Stream)
    else:
        stream = stream_of(named, stream)
        runs = runs_of(named, stream).select_related("stream").defer("provenance")
        if kind == "night" or (kind == "latest" and filters.keys() <= {"stream", "arch", "dtype"}):
            asked = {part: filters.get(part, chosen) for part, chosen in subject.items()}
            night = night_of(f"{kind}:{name}", stream, asked)
        if night or kind == "night":
            rows = list(runs.filter(pk__in=night.runs if night else ()))
        else:
            rows = list((runs if kind == "commit" else runs.filter(state__in=TERMINAL))[:_MOST_RUNS])
    if kind == "commit":
        commits = sorted({run.commit for run in rows})
        if len(commits) > 1 and name not in commits:
            several = ", ".join(commit[:12] for commit in commits[:5])
            raise BadSide(f"{len(commits)} commits begin with {name}: {several}; give more of it", 400)
        rows = [run for run in rows if run.commit == name or name not in commits]
    if kind not in {"run", "commit"} and not night:
        first = next(iter(_with_results(rows, {**subject, **filters}, environments, most=1)), None)
        rows = [
            run
            for run in rows
            if first and run.commit == first.commit and run.order_time >= first.order_time - _NIGHT
        ]
    if filters.keys() & {*EXPERIMENT_KINDS, "torch"}:
        rows = _with_results(rows, filters, environments, most=len(rows))
    if not rows:
        is_run = kind == "run"
        raise BadSide(f"no run has the id {name}" if is_run else f"no run of {stream.name} is {text[:120]!r}")
    ab_side = int(not is_base) if kind == "run" and rows[0].is_ab else None
    runs_of_side = tuple(run.pk for run in rows)
    start = rows[-1].order_time
    return ComparedSide(text, kind, name, rows[0], runs_of_side, start, ab_side, filters, environments)


def environments_of(torch: str) -> tuple[int, ...]:
    """Return the environments of a version of torch, such as 2.13 or 2.13.0: 1 statement."""
    known = Environment.objects.filter(torch__startswith=torch).values_list("pk", "torch")
    return tuple(pk for pk, version in known if not version[len(torch) :][:1].isdigit())


def _with_results(
    rows: list[Run], subject: Mapping[str, str], environments: tuple[int, ...] | None, *, most: int
) -> list[Run]:
    """Return the first of these runs with results of the subject: 1 statement."""
    asked: dict[str, Any] = {kind: subject.get(kind, "") for kind in (*EXPERIMENT_KINDS, "mode")}
    measured = fetch_tuples(
        """
        SELECT run FROM unnest(%(runs)s::int[]) run WHERE EXISTS (
            SELECT FROM (
                SELECT run_id, series_id, environment_id FROM hud_point
                UNION ALL SELECT run_id, series_id, environment_id FROM hud_sidepoint) p
            JOIN hud_series s ON s.id = p.series_id JOIN hud_experiment e ON e.id = s.experiment_id
            WHERE p.run_id = run AND %(arch)s::text IN ('', coalesce(nullif(e.arch, ''), e.device))
                AND %(backend)s::text IN ('', e.backend) AND %(dtype)s::text IN ('', e.dtype)
                AND %(mode)s::text IN ('', e.mode)
                AND (%(environments)s::int[] IS NULL OR p.environment_id = ANY(%(environments)s::int[]))
            OFFSET 0) LIMIT %(most)s
        """,
        {
            **asked,
            "runs": [run.pk for run in rows],
            "environments": None if environments is None else list(environments),
            "most": most,
        },
    )
    ids = {run for (run,) in measured}
    return [run for run in rows if run.pk in ids]


def compilations_of(
    side: sides.Side, stream: Stream, default: Literal["base", "head"]
) -> tuple[sides.Side, list[Compilation]]:
    """Return the compilations of a side in order, and the side as it was found. Raise BadSide without any.

    3 statements, 1 more for a night. A run of one experiment needs no experiment named, and an A/B run has
    the side that it stands for. Of several environments of a run the one of its first compilation counts.
    """
    if unknown := side.filters.keys() - {"host", "branch", "stream"}:
        raise BadSide(f"{side}: an experiment says itself its {', '.join(sorted(unknown))}", 400)
    stream = stream_of(side, stream)
    if side.kind == "night":
        of_day = nights.of_day(stream, side.name)
        runs = Run.objects.filter(pk__in=[run for night in of_day for run in night.runs])
    else:
        runs = runs_of(side, stream).order_by()
    compilations = Compilation.objects.filter(run__in=runs, draw=None)
    if side.experiment is not None:
        compilations = compilations.filter(experiment=side.experiment)
    newest: int | None = int(side.name) if side.kind == "run" else None
    if newest is None:
        newest = compilations.order_by("-order_time", "-run_id").values_list("run", flat=True).first()
    rows = fetch_models(
        Compilation,
        """JOIN hud_run run ON run.id = own.run_id
        JOIN hud_environment environment ON environment.id = own.environment_id
        WHERE own.run_id = %(run)s AND own.draw IS NULL
            AND own.experiment_id = coalesce(%(experiment)s, own.experiment_id)
        ORDER BY own.repeat, own.side""",
        {"run": newest, "experiment": side.experiment},
        run=Run,
        environment=Environment,
    )
    if len({row.experiment_id for row in rows}) != 1:
        raise BadSide(f"{side}: {_why_not_one(side, runs.filter(pk=newest) if newest and rows else runs)}")
    if rows[0].run.is_ab:
        side = replace(side, ab=side.ab or default)
    rows = [row for row in rows if side.ab is None or row.side == (side.ab == "head")]
    if not rows:
        raise BadSide(f"{side}: the kernels of this side of run {newest} are not known")
    if side.compilation is not None:
        numbers = sorted({number_of(row) for row in rows})
        rows = [row for row in rows if number_of(row) == side.compilation]
        if not rows:
            there = ", ".join(map(str, numbers))
            raise BadSide(f"{side}: run {newest} has no such compilation; it has {there}")
    rows = [row for row in rows if row.environment_id == rows[0].environment_id]
    return replace(side, kind="run", name=str(newest), filters={}, experiment=rows[0].experiment_id), rows


def _why_not_one(side: sides.Side, runs: QuerySet[Run]) -> str:
    """Return why a side is not of one experiment: there is no such run, or it has kernels of others."""
    if not runs.exists():
        return "there is no run with this number" if side.kind == "run" else "the stream has no such run"
    known = Experiment.objects.filter(compilations__run__in=runs).distinct().order_by("pk")[:20]
    names = ", ".join(f"{experiment.pk} ({experiment.title} {experiment.backend})" for experiment in known)
    if not names:
        return "no kernels are known of it; only compilations that named them can be compared"
    if side.experiment is None:
        return f"it has several experiments; add /experiment:ID with one of {names}"
    return f"it has no kernels of experiment {side.experiment}, but of {names}"


def number_of(row: Compilation) -> int:
    """Return the number by which a compilation is named, from 0."""
    return row.repeat if row.number is None else row.number


@dataclass(slots=True)
class OfferedPoint:
    """A point that may be chosen as a side."""

    run: int
    experiment: int
    backend: str
    order_time: datetime
    commit: str
    is_ab: bool
    numbers: list[int]

    @property
    def side(self) -> str:
        return f"run:{self.run}/experiment:{self.experiment}"

    @property
    def name(self) -> str:
        commit = f", {self.commit[:7]}" if self.commit else ""
        return f"{self.order_time:%Y-%m-%d}{commit}, run {self.run}"


def offered(experiments: set[int], stream: Stream) -> list[OfferedPoint]:
    """Return the newest points of these experiments in a stream, and of other backends of the same case: 1
    statement."""
    return fetch(
        OfferedPoint,
        """
        SELECT c.run_id run, c.experiment_id experiment, e.backend, c.order_time, r.commit,
            r.base_interpreter <> '' is_ab, array_agg(coalesce(c.number, c.repeat) ORDER BY c.repeat) numbers
        FROM hud_compilation c
        JOIN hud_experiment e ON e.id = c.experiment_id
        JOIN hud_run r ON r.id = c.run_id AND r.stream_id = %(stream)s
        WHERE c.experiment_id IN (
            SELECT other.id FROM hud_experiment own JOIN hud_experiment other USING
                (suite, "case", knobs, mode, dtype, device, arch, dynamic)
            WHERE own.id = ANY(%(experiments)s)
        ) AND c.side = 0 AND c.draw IS NULL
        GROUP BY c.run_id, c.experiment_id, e.backend, c.order_time, r.commit, is_ab
        ORDER BY c.order_time DESC, c.run_id DESC, e.backend LIMIT %(limit)s
        """,
        {"stream": stream.pk, "experiments": list(experiments), "limit": _MOST_OFFERED},
    )
