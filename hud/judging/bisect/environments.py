"""The versions of torch that a bisect can compare on a host. Another provider may fetch them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from django.db.models.functions import Substr
from packaging.version import InvalidVersion, Version

from hud.models import Accelerator, Run

_NIGHTLY = re.compile(r"\.dev(\d{4})(\d{2})(\d{2})")
_COMMIT_DIGITS = 9  # by which commits are compared


@dataclass(frozen=True)
class Build:
    """A version of torch. `interpreter` is its name on the host; `date` the day of its commit, '' unknown."""

    interpreter: str
    torch: str
    torch_git: str
    date: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @property
    def version(self) -> tuple[str, str]:
        return self.torch, self.torch_git


class Provider(Protocol):
    def builds(self, accelerator: Accelerator) -> Sequence[Build]:
        """Return the versions that this accelerator can run, the oldest first, each once."""


class HostInterpreters:
    """The interpreters that a host was attached with (`--python NAME=PATH`)."""

    def builds(self, accelerator: Accelerator) -> Sequence[Build]:
        pythons: Any = accelerator.host.facts.get("pythons")
        offered = set(accelerator.catalog.get("pythons", []))
        found: dict[tuple[str, str], Build] = {}
        for name, facts in sorted(pythons.items() if isinstance(pythons, dict) else ()):
            if name in offered and isinstance(facts, dict) and facts.get("torch"):
                build = Build(name, str(facts["torch"]), str(facts.get("torch_git", "")))
                found.setdefault(build.version, build)
        dates = _dates(found.values())
        dated = [Build(one.interpreter, *one.version, dates.get(one.version, "")) for one in found.values()]
        return in_order(dated)


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


PROVIDER: Provider = HostInterpreters()
