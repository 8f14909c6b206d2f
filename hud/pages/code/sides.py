"""The two sides of a comparison of points, as URLs name them: `run:12/experiment:5/compilation:2`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from django.db.models import QuerySet

from hud.models import Compilation, Environment, Experiment, Run
from hud.sql import fetch_models
from hud.runs.branches import stored_names

_SIDE = re.compile(
    r"(?:run:(?P<run>[1-9]\d{0,9})|commit:(?P<commit>[0-9A-Za-z._-]{4,64})|latest:(?P<branch>[^\x00-\x1f]{1,200}?))"
    r"(?:/experiment:(?P<experiment>[1-9]\d{0,9}))?"
    r"(?:/side:(?P<ab>base|head))?"
    r"(?:/compilation:(?P<compilation>\d{1,4}))?"
)
_MAX_ID = 2**31 - 1


class BadSide(ValueError):
    """A side that is not of the form, or that nothing fits."""


@dataclass(frozen=True)
class Side:
    """One side: which run, then which experiment, side of an A/B run and compilation in it (None: all)."""

    run: int | None = None
    commit: str = ""
    branch: str = ""
    experiment: int | None = None
    ab: Literal["base", "head"] | None = None
    compilation: int | None = None

    def __str__(self) -> str:
        where = (
            f"run:{self.run}"
            if self.run
            else f"commit:{self.commit}"
            if self.commit
            else f"latest:{self.branch}"
        )
        parts = (("experiment", self.experiment), ("side", self.ab), ("compilation", self.compilation))
        return where + "".join(f"/{name}:{value}" for name, value in parts if value is not None)


def parse(text: str) -> Side:
    """Return the side. Raise BadSide."""
    found = _SIDE.fullmatch(text)
    if found is None:
        raise BadSide(
            f"{text[:80]!r} is no side; a side is run:ID, commit:HASH or latest:BRANCH, with /experiment:ID,"
            " and if wanted /side:base or /side:head of an A/B run and /compilation:N"
        )
    numbers = {
        name: int(found[name]) if found[name] else None for name in ("run", "experiment", "compilation")
    }
    if max(number or 0 for number in numbers.values()) > _MAX_ID:
        raise BadSide(f"{text[:80]!r} holds an id that nothing has")
    return Side(
        numbers["run"],
        found["commit"] or "",
        found["branch"] or "",
        numbers["experiment"],
        found["ab"],  # type: ignore[arg-type]  # one of the two, by the pattern
        numbers["compilation"],
    )


def compilations_of(side: Side, default: Literal["base", "head"]) -> tuple[Side, list[Compilation]]:
    """Return the compilations of a side in order, and the side as it was found. Raise BadSide without any.

    3 statements. A run of one experiment needs no experiment named, and an A/B run has the side that it
    stands for. Of several environments of a run the one of its first compilation counts.
    """
    runs = Run.objects.all()
    if side.commit:
        runs = runs.filter(commit__startswith=side.commit)
    elif side.branch:
        runs = runs.filter(branch__in=stored_names(side.branch), base_interpreter="")
    found = (
        Compilation.objects.filter(run__in=runs)
        if side.run is None
        else Compilation.objects.filter(run=side.run)
    )
    if side.experiment is not None:
        found = found.filter(experiment=side.experiment)
    newest = found.order_by("-order_time", "-run_id").values_list("run", flat=True).first()
    if newest is None:
        raise BadSide(f"{side}: {_why_none(side, runs)}")
    rows = _of_run(newest, side.experiment)
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
    return replace(side, run=newest, commit="", branch="", experiment=rows[0].experiment_id), rows


def _why_none(side: Side, runs: QuerySet[Run]) -> str:
    """Return why a side has no compilation: no such run, no kernels in it, or those of other experiments."""
    runs = runs if side.run is None else Run.objects.filter(pk=side.run)
    if not runs.exists():
        which = "of this commit" if side.commit else "on this branch" if side.branch else "with this number"
        return f"there is no run {which}"
    known = Experiment.objects.filter(compilations__run__in=runs).distinct().order_by("pk")[:20]
    names = ", ".join(f"{one.pk} ({one.title} {one.backend})" for one in known)
    if not names:
        return "no kernels are known of it; only compilations that named them can be compared"
    return f"it has no kernels of experiment {side.experiment}, but of {names}"


def _of_run(run: int, experiment: int | None) -> list[Compilation]:
    condition = """JOIN hud_run run ON run.id = one.run_id
        JOIN hud_environment environment ON environment.id = one.environment_id
        WHERE one.run_id = %(run)s AND one.experiment_id = coalesce(%(experiment)s, one.experiment_id)
        ORDER BY one.repeat, one.side"""
    params = {"run": run, "experiment": experiment}
    return fetch_models(Compilation, condition, params, run=Run, environment=Environment)


def number_of(row: Compilation) -> int:
    """Return the number by which a compilation is named, from 0."""
    return row.repeat if row.number is None else row.number


def same_card(base: Environment, head: Environment) -> bool:
    """Return whether both are known to be one card."""
    uuids = base.facts.get("gpu_uuid"), head.facts.get("gpu_uuid")
    return base.pk == head.pk or (bool(uuids[0]) and uuids[0] == uuids[1])
