"""The sides of a comparison of points, `run:12/experiment:5/compilation:2`: their compilations, and those to
choose from, of experiments with kernels at two points or in two compilations."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from django.db.models import QuerySet

from hud.models import Compilation, Environment, Experiment, Run, Stream
from hud.points import nights
from hud.points.sides import BadSide, Side, runs_of
from hud.sql import fetch, fetch_models

_MOST_OFFERED = 60  # points


def compilations_of(
    side: Side, stream: Stream, default: Literal["base", "head"]
) -> tuple[Side, list[Compilation]]:
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
    rows = _of_run(newest, side.experiment)
    if not rows:
        raise BadSide(f"{side}: {_why_none(side, runs)}")
    others = {row.experiment_id for row in rows}
    if len(others) > 1:
        titles = Experiment.objects.in_bulk(others)
        names = ", ".join(f"{pk} ({titles[pk].title} {titles[pk].backend})" for pk in sorted(others)[:20])
        raise BadSide(f"{side} has several experiments; add /experiment:ID with one of {names}")
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


def _why_none(side: Side, runs: QuerySet[Run]) -> str:
    """Return why a side has no compilation: no such run, no kernels in it, or those of other experiments."""
    if not runs.exists():
        return "there is no run with this number" if side.kind == "run" else "the stream has no such run"
    known = Experiment.objects.filter(compilations__run__in=runs).distinct().order_by("pk")[:20]
    names = ", ".join(f"{one.pk} ({one.title} {one.backend})" for one in known)
    if not names:
        return "no kernels are known of it; only compilations that named them can be compared"
    return f"it has no kernels of experiment {side.experiment}, but of {names}"


def _of_run(run: int | None, experiment: int | None) -> list[Compilation]:
    condition = """JOIN hud_run run ON run.id = one.run_id
        JOIN hud_environment environment ON environment.id = one.environment_id
        WHERE one.run_id = %(run)s AND one.draw IS NULL
            AND one.experiment_id = coalesce(%(experiment)s, one.experiment_id)
        ORDER BY one.repeat, one.side"""
    params = {"run": run, "experiment": experiment}
    return fetch_models(Compilation, condition, params, run=Run, environment=Environment)


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
