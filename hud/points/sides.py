"""The sides of a comparison, as addresses name them.

Which runs: `run:12`, `commit:abc123`, `latest:main`, `date:2026-11-20`, `night:2026-11-20`, or only a
date; without any of these the newest night. Which of their results: `arch:h200`, `backend:inductor`,
`dtype:bfloat16`, `torch:2.13.0`, `host:h200-a`, `branch:x`, `stream:y`. Several are joined by commas:
`night:2026-11-20,arch:h200`. A side of points has more: `/experiment:5`, `/side:head` of an A/B run,
`/compilation:2`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from django.db.models import QuerySet

from hud.models import Run, Stream
from hud.problems import Problem
from hud.runs import streams
from hud.runs.branches import stored_names

RUN_KINDS = ("run", "commit", "latest", "date", "night")
EXPERIMENT_KINDS = ("arch", "backend", "dtype")  # parts of an experiment's identity
FILTERS = (*EXPERIMENT_KINDS, "torch", "host", "branch", "stream")
_KIND = re.compile(rf"(?:({'|'.join((*RUN_KINDS, *FILTERS))}):)?([^\x00-\x1f]{{0,200}})")
_NEXT = re.compile(rf",(?=(?:{'|'.join((*RUN_KINDS, *FILTERS))}):)")
_OF_POINT = re.compile(
    r"(?:/experiment:(?P<experiment>[1-9]\d{0,9}))?"
    r"(?:/side:(?P<ab>base|head))?"
    r"(?:/compilation:(?P<compilation>\d{1,4}))?$"
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
    "a side is run:ID, commit:HASH with 4 characters or more, latest:BRANCH, date:YYYY-MM-DD or"
    f" night:YYYY-MM-DD, of each at most one, and {', '.join(FILTERS)} with a name, joined by commas; of What"
    " changed with /experiment:ID, and if wanted /side:base or /side:head of an A/B run and /compilation:N"
)


class BadSide(Problem):
    """A side that is not of the form or ambiguous (400), or that nothing fits (404)."""

    def __init__(self, text: str, status: int = 404) -> None:
        super().__init__(status, text)


@dataclass(frozen=True)
class Side:
    """Which runs and results, then which experiment, side of an A/B run and compilation (None: all)."""

    kind: str  # of `RUN_KINDS`; `latest` where only results are named
    name: str
    filters: Mapping[str, str] = field(default_factory=dict)
    experiment: int | None = None
    ab: Literal["base", "head"] | None = None
    compilation: int | None = None

    @property
    def branch(self) -> str:
        return self.filters.get("branch") or (self.name if self.kind == "latest" else "")

    def __str__(self) -> str:
        runs, named = f"{self.kind}:{self.name}", [f"{kind}:{name}" for kind, name in self.filters.items()]
        text = ",".join(named if named and runs == "latest:" else [runs, *named])
        parts = (("experiment", self.experiment), ("side", self.ab), ("compilation", self.compilation))
        return text + "".join(f"/{name}:{value}" for name, value in parts if value is not None)


def parse(text: str) -> Side:
    """Return the side. Raise BadSide."""
    of_point = _OF_POINT.search(text)
    assert of_point  # each part is optional
    parts = [_KIND.fullmatch(part) for part in _NEXT.split(text[: of_point.start()])]
    named = [(part[1] or "night", part[2]) if part else ("", "") for part in parts]
    names = dict(named)
    valid = len(names) == len(named)
    for kind, name in named:
        if kind in {"date", "night"}:
            try:
                end_of(name[:10])
            except (ValueError, OverflowError):
                valid = False
        valid = valid and bool(kind) and bool(re.fullmatch(_NAMES.get(kind, r".+"), name))
    runs = [kind for kind in RUN_KINDS if kind in names]
    if not valid or len(runs) > 1:
        raise BadSide(f"{text[:80]!r} is no side; {_FORM}", 400)
    kind = runs[0] if runs else "latest"
    name = names.pop(kind, "")
    experiment, compilation = (
        int(of_point[part]) if of_point[part] else None for part in ("experiment", "compilation")
    )
    if max(experiment or 0, int(name) if kind == "run" else 0) > _MAX_ID:
        raise BadSide(f"{text[:80]!r} holds an id that nothing has")
    return Side(kind, name, names, experiment, of_point["ab"], compilation)  # type: ignore[arg-type]  # of the pattern


def runs_of(side: Side, stream: Stream) -> QuerySet[Run]:
    """Return the runs that a side means, the newest first. `run:` is any run; all else is of the stream, and
    neither a rerun nor an A/B comparison. Those of a night are `hud.points.nights.side`'s."""
    if side.kind == "run":
        return Run.objects.filter(pk=side.name)
    runs = Run.objects.filter(stream=stream, rerun=False, base_interpreter="").order_by("-order_time", "-pk")
    if host := side.filters.get("host"):
        runs = runs.filter(host_name=host)
    if side.kind == "commit":
        return runs.filter(commit__startswith=side.name)
    if side.kind == "date":
        runs = runs.filter(order_time__lt=end_of(side.name))
    return runs if host and not side.branch else runs.filter(branch__in=stored_names(side.branch))


def stream_of(side: Side, stream: Stream) -> Stream:
    """Return the stream that a side names, else the given one: 1 statement where it names one. Raise
    BadSide."""
    name = side.filters.get("stream", stream.name)
    chosen = stream if name == stream.name else streams.named(name).first()
    if chosen is None:
        raise BadSide(f"no stream is called {name[:60]!r}")
    return chosen


def end_of(day: str) -> datetime:
    """Return the end of a day such as 2026-11-20, in UTC."""
    return datetime.combine(date.fromisoformat(day), time(), UTC) + timedelta(days=1)
