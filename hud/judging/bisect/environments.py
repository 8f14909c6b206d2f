"""The versions of torch that a bisect can compare on a host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.db.models.functions import Substr
from packaging.version import InvalidVersion, Version

from hud.models import Accelerator, Run

_NIGHTLY = re.compile(r"\.dev(\d{4})(\d{2})(\d{2})")
_COMMIT_DIGITS = 9  # by which commits are compared


@dataclass(frozen=True)
class Build:
    """An interpreter with torch, by its name on the host. `date` is the day of torch's commit, '' unknown;
    `differs` what tells it from others with the same torch, such as its Triton."""

    interpreter: str
    torch: str
    torch_git: str
    date: str = ""
    differs: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @property
    def version(self) -> tuple[str, str]:
        return self.torch, self.torch_git


def builds_of(accelerator: Accelerator) -> list[Build]:
    """Return the interpreters with torch that an accelerator can run, the oldest torch first: those with
    which its host was attached (`--python NAME=PATH`)."""
    pythons: Any = accelerator.host.facts.get("pythons")
    offered = set(accelerator.catalog.get("pythons", []))
    found: dict[str, Build] = {}
    for name, facts in sorted(pythons.items() if isinstance(pythons, dict) else ()):
        if name in offered and isinstance(facts, dict) and facts.get("torch"):
            found[name] = Build(name, str(facts["torch"]), str(facts.get("torch_git", "")))
    dates = _dates(found.values())
    return in_order(
        [
            replace(
                one,
                date=dates.get(one.version, ""),
                differs=_differs(pythons, name, [n for n in found if found[n].version == one.version]),
            )
            for name, one in found.items()
        ]
    )


def _differs(pythons: Mapping[str, Mapping[str, Any]], name: str, same: Sequence[str]) -> str:
    """Return the facts of an interpreter that are not those of all the `same`, which have one torch."""
    said = {one: _facts(pythons[one]) for one in same}
    own = said[name]
    keys = sorted({key for facts in said.values() for key in facts})
    differing = [key for key in keys if len({facts.get(key, "") for facts in said.values()}) > 1]
    return ", ".join(f"{key} {own.get(key) or 'none'}" for key in differing)


def _facts(python: Mapping[str, Any]) -> dict[str, str]:
    found = {name: str(python[name]) for name in ("triton", "python", "compiler") if python.get(name)}
    for inner in ("packages", "variables"):
        if isinstance(python.get(inner), dict):
            found |= {str(name): str(text) for name, text in python[inner].items()}
    return found


def in_order(builds: Sequence[Build]) -> list[Build]:
    """Return the builds by the day of their commit; by their versions if the day of one is not known."""
    if all(build.date for build in builds):
        return sorted(builds, key=lambda build: (build.date, _version(build), build.interpreter))
    return sorted(builds, key=lambda build: (_version(build), build.date, build.interpreter))


def _version(build: Build) -> Version:
    try:
        return Version(build.torch)
    except InvalidVersion:
        return Version("0")


def _dates(builds: Any) -> dict[tuple[str, str], str]:
    """Return the days of commits: a nightly's from its version, others' from runs of the same commit."""
    commits = {build.torch_git[:_COMMIT_DIGITS]: build for build in builds if build.torch_git}
    known = Run.objects.annotate(start=Substr("commit", 1, _COMMIT_DIGITS)).filter(
        start__in=commits, order_time_source="commit"
    )
    days = dict(known.order_by("-order_time").values_list("start", "order_time"))
    found = {}
    for build in builds:
        nightly = _NIGHTLY.search(build.torch)
        if nightly:
            found[build.version] = "-".join(nightly.groups())
        elif day := days.get(build.torch_git[:_COMMIT_DIGITS]):
            found[build.version] = f"{day:%Y-%m-%d}"
    return found
