"""The sides of a comparison of runs, as URLs name them: `run:12`, `commit:abc123`, `latest:main`.

A side is a set of runs, and of each experiment its newest point in them. `latest:`, `branch:`, `host:` and
`date:` mean the newest point of each experiment within 14 days: not every night runs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from hud.models import TERMINAL, Run
from hud.sql import by_id
from hud.runs.branches import branch_or_default, stored_names

MOST_SIDES = 4
WINDOW = timedelta(days=14)
_MOST_RUNS = 3000
_MAX_ID = 2**31 - 1
_SIDE = re.compile(r"(run|commit|latest|branch|host|date):([^\x00-\x1f]{1,200})")
_COLUMNS = ("order_time", "title", "host_name", "branch", "commit", "interpreter", "base_interpreter")
_FORM = "a side is run:ID, commit:HASH, latest:BRANCH, host:NAME or date:YYYY-MM-DD"


class BadSide(ValueError):
    """A side that is not of the form or ambiguous (400), or that nothing fits (404)."""

    def __init__(self, text: str, status: int = 404) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Side:
    """One side. `newest` is the run that stands for it."""

    text: str
    kind: str
    newest: Run
    runs: tuple[int, ...]
    start: datetime
    ab_side: int | None = None  # of an A/B run

    @property
    def title(self) -> str:
        if self.kind == "run":
            return f"Run {self.newest.pk}"
        name = self.text.partition(":")[2]
        if self.kind == "commit":
            return f"Commit {self.newest.commit[:10]}"
        return {"host": f"Host {name}", "date": f"As of {name}"}.get(self.kind, f"Latest on {name}")

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

    def to_json(self) -> dict[str, Any]:
        run = self.newest
        return {
            "side": self.text,
            "runs": list(self.runs[:100]),
            "run_count": len(self.runs),
            "commit": run.commit,
            "branch": self.branch,
            "host": run.host_name,
            "from": self.start.isoformat(),
            "to": run.order_time.isoformat(),
        }


def resolve(text: str, *, is_base: bool) -> Side:
    """Return the side: 1 statement. `is_base` chooses the side of an A/B run. Raise BadSide."""
    found = _SIDE.fullmatch(text)
    if found is None:
        raise BadSide(f"{text[:80]!r} is no side; {_FORM}", 400)
    kind, name = found[1], found[2]
    if kind == "run":
        return _one_run(text, name, is_base=is_base)
    runs = Run.objects.filter(state__in=TERMINAL, base_interpreter="")
    runs = runs.exclude(request__caches="pinned").order_by("-order_time", "-pk").only(*_COLUMNS)
    if kind == "commit":
        return _commit(text, name, runs)
    until: datetime | None = None
    if kind == "date":
        until, wanted = _end_of(name), Q(branch__in=stored_names())
    elif kind == "host":
        wanted = Q(host_name=name)
    else:
        wanted = Q(branch__in=stored_names(name))
    if until is not None:
        wanted &= Q(order_time__lt=until)
    rows = list(runs.filter(wanted)[:_MOST_RUNS])
    if not rows:
        raise BadSide(f"no run is of {text[:120]!r}")
    since = (until or rows[0].order_time) - WINDOW
    rows = [run for run in rows if run.order_time >= since]
    if not rows:
        raise BadSide(f"no run is of {text[:120]!r} or the 14 days before it")
    return _side(text, kind, rows)


def _one_run(text: str, name: str, *, is_base: bool) -> Side:
    if not re.fullmatch(r"[1-9]\d{0,9}", name):
        raise BadSide(f"{text[:80]!r} is no side; {_FORM}", 400)
    run = by_id(Run, [int(name)]).get(int(name)) if int(name) <= _MAX_ID else None
    if run is None:
        raise BadSide(f"no run has the id {name}")
    return Side(text, "run", run, (run.pk,), run.order_time, int(not is_base) if run.is_ab else None)


def _commit(text: str, name: str, runs: QuerySet[Run]) -> Side:
    if not re.fullmatch(r"[0-9A-Za-z._-]{4,64}", name):
        raise BadSide(f"{text[:80]!r} is no commit; it needs 4 characters or more of its hash", 400)
    rows = list(runs.filter(commit__startswith=name)[:_MOST_RUNS])
    commits = sorted({run.commit for run in rows})
    if name in commits:
        rows, commits = [run for run in rows if run.commit == name], [name]
    if len(commits) > 1:
        several = ", ".join(commit[:12] for commit in commits[:5])
        raise BadSide(f"{len(commits)} commits begin with {name}: {several}; give more of it", 400)
    if not rows:
        raise BadSide(f"no run has the commit {name}")
    return _side(text, "commit", rows)


def _side(text: str, kind: str, rows: Sequence[Run]) -> Side:
    return Side(text, kind, rows[0], tuple(run.pk for run in rows), rows[-1].order_time)


def _end_of(name: str) -> datetime:
    try:
        day = date.fromisoformat(name)
        return datetime.combine(day + timedelta(days=1), time(), UTC)
    except (ValueError, OverflowError) as error:
        raise BadSide(f"{name[:40]!r} is no date such as 2026-11-20", 400) from error
