"""The sides of a comparison, as addresses name them.

`run:12`, `commit:abc123`, `latest:main`, `branch:x`, `host:h200-a`, `date:2026-11-20`, `night:2026-11-20` or
only a date. A side of points has more: `/experiment:5`, `/side:head` of an A/B run, `/compilation:2`.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from django.db.models import QuerySet

from hud.models import Run, Stream
from hud.problems import Problem
from hud.runs.branches import stored_names

_SIDE = re.compile(
    r"(?:(?P<kind>run|commit|latest|branch|host|date|night):)?(?P<name>[^\x00-\x1f]{0,200}?)"
    r"(?:/experiment:(?P<experiment>[1-9]\d{0,9}))?"
    r"(?:/side:(?P<ab>base|head))?"
    r"(?:/compilation:(?P<compilation>\d{1,4}))?"
)
_NAMES = {
    "run": r"[1-9]\d{0,9}",
    "commit": r"[0-9A-Za-z._-]{4,64}",
    "latest": r".*",  # '': of the default branch
    "date": r"\d{4}-\d\d-\d\d",
    "night": r"\d{4}-\d\d-\d\d(T\d\d:\d\d)?",  # the minute of one that began on the day of another
}
_MAX_ID = 2**31 - 1
_FORM = (
    "a side is run:ID, commit:HASH with 4 characters or more, latest:BRANCH, host:NAME, date:YYYY-MM-DD or"
    " night:YYYY-MM-DD; of What changed with /experiment:ID, and if wanted /side:base or /side:head of an A/B"
    " run and /compilation:N"
)


class BadSide(Problem):
    """A side that is not of the form or ambiguous (400), or that nothing fits (404)."""

    def __init__(self, text: str, status: int = 404) -> None:
        super().__init__(status, text)


@dataclass(frozen=True)
class Side:
    """Which runs, then which experiment, side of an A/B run and compilation in them (None: all)."""

    kind: str
    name: str
    experiment: int | None = None
    ab: Literal["base", "head"] | None = None
    compilation: int | None = None

    def __str__(self) -> str:
        parts = (("experiment", self.experiment), ("side", self.ab), ("compilation", self.compilation))
        more = "".join(f"/{name}:{value}" for name, value in parts if value is not None)
        return f"{self.kind}:{self.name}{more}"


def parse(text: str) -> Side:
    """Return the side. Raise BadSide."""
    match = _SIDE.fullmatch(text)
    kind, name = (match["kind"] or "night", match["name"]) if match else ("", "")
    if kind in {"date", "night"}:
        try:
            end_of(name[:10])
        except (ValueError, OverflowError):
            match = None
    if match is None or not re.fullmatch(_NAMES.get(kind, r".+"), name):
        raise BadSide(f"{text[:80]!r} is no side; {_FORM}", 400)
    experiment, compilation = (
        int(match[part]) if match[part] else None for part in ("experiment", "compilation")
    )
    if max(experiment or 0, int(name) if kind == "run" else 0) > _MAX_ID:
        raise BadSide(f"{text[:80]!r} holds an id that nothing has")
    return Side(kind, name, experiment, match["ab"], compilation)  # type: ignore[arg-type]  # of the pattern


def runs_of(side: Side, stream: Stream) -> QuerySet[Run]:
    """Return the runs that a side means, the newest first. `run:` is any run; all else is of the stream, and
    neither a rerun nor an A/B comparison. Those of a night are `hud.points.nights.side`'s."""
    if side.kind == "run":
        return Run.objects.filter(pk=side.name)
    runs = Run.objects.filter(stream=stream, rerun=False, base_interpreter="").order_by("-order_time", "-pk")
    if side.kind == "commit":
        return runs.filter(commit__startswith=side.name)
    if side.kind == "host":
        return runs.filter(host_name=side.name)
    if side.kind == "date":
        return runs.filter(branch__in=stored_names(), order_time__lt=end_of(side.name))
    return runs.filter(branch__in=stored_names(side.name))


def end_of(day: str) -> datetime:
    """Return the end of a day such as 2026-11-20, in UTC."""
    return datetime.combine(date.fromisoformat(day), time(), UTC) + timedelta(days=1)
