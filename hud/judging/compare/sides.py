"""The sides of a comparison: sets of runs, and of each experiment its newest point in them; of one of points,
`run:12/experiment:5/compilation:2`, their compilations.

`latest:`, `branch:`, `host:` and `date:` mean the newest point of each experiment within 14 days: not every
night runs all of them. Those of `latest:` end with the night that the overview shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from django.db.models import Q, QuerySet

from hud.models import TERMINAL, Compilation, Environment, Experiment, Run, Stream
from hud.points import nights, sides
from hud.points.sides import BadSide, runs_of
from hud.points.streams import night_of
from hud.runs.branches import branch_or_default
from hud.sql import fetch, fetch_models
from hud.tables.table import Column, DataTable

MOST_SIDES = 4
WINDOW = timedelta(days=14)
_MOST_RUNS, _MOST_OFFERED = 3000, 60
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

    @property
    def title(self) -> str:
        if self.kind == "run":
            return f"Run {self.newest.pk}"
        if self.kind == "commit":
            return f"Commit {self.newest.commit[:10]}"
        titles = {"host": "Host", "date": "As of", "night": "Night of"}
        return f"{titles.get(self.kind, 'Latest on')} {self.name or self.branch}"

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
        return f"{runs}, {self.start:%-d %b} to {end:%-d %b %Y}"

    @property
    def branch(self) -> str:
        return branch_or_default(self.newest.branch)

    @property
    def stream(self) -> str:
        return self.newest.stream.name


def resolve(text: str, stream: Stream, subject: Mapping[str, str], *, is_base: bool) -> ComparedSide:
    """Return the side: 1 statement, and those of `night_of` for a night or `latest:`. `subject` is the arch,
    mode and dtype that are compared; `is_base` chooses the side of an A/B run. Raise BadSide."""
    named = sides.parse(text)
    kind, name = named.kind, named.name
    if named != sides.Side(kind, name):
        raise BadSide(f"{text[:80]!r} is a side of one experiment, which What changed compares", 400)
    if kind == "run":
        with_stream = "JOIN hud_stream stream ON stream.id = own.stream_id WHERE own.id = %(run)s"
        rows = fetch_models(Run, with_stream, {"run": name}, stream=Stream)
    else:
        runs = runs_of(named, stream)
        night = night_of(f"{kind}:{name}", stream, subject) if kind in {"night", "latest"} else None
        if kind == "night":
            own = night.runs if night else ()
            runs = Run.objects.filter(pk__in=own).order_by("-order_time", "-pk")
        elif night:
            runs = runs.filter(Q(order_time__lt=night.time) | Q(pk__in=night.runs))
        elif kind != "commit":
            runs = runs.filter(state__in=TERMINAL)
        rows = list(runs.select_related("stream").defer("provenance")[:_MOST_RUNS])
    if kind == "commit":
        commits = sorted({run.commit for run in rows})
        if len(commits) > 1 and name not in commits:
            several = ", ".join(commit[:12] for commit in commits[:5])
            raise BadSide(f"{len(commits)} commits begin with {name}: {several}; give more of it", 400)
        rows = [run for run in rows if run.commit == name or name not in commits]
    elif kind not in {"run", "night"} and rows:
        until = sides.end_of(name) if kind == "date" else rows[0].order_time
        rows = [run for run in rows if run.order_time >= until - WINDOW]
    if not rows:
        is_run = kind == "run"
        raise BadSide(f"no run has the id {name}" if is_run else f"no run of {stream.name} is {text[:120]!r}")
    ab_side = int(not is_base) if kind == "run" and rows[0].is_ab else None
    runs_of_side = tuple(run.pk for run in rows)
    return ComparedSide(text, kind, name, rows[0], runs_of_side, rows[-1].order_time, ab_side)


def compilations_of(
    side: sides.Side, stream: Stream, default: Literal["base", "head"]
) -> tuple[sides.Side, list[Compilation]]:
    """Return the compilations of a side in order, and the side as it was found. Raise BadSide without any.

    3 statements, 1 more for a night. A run of one experiment needs no experiment named, and an A/B run has
    the side that it stands for. Of several environments of a run the one of its first compilation counts.
    """
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
    return replace(side, kind="run", name=str(newest), experiment=rows[0].experiment_id), rows


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
