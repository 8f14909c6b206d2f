"""Regressions, grouped by cause and the most certain and largest first; and one of them with its history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.utils import timezone

from hud.judging.compare.sides import resolve
from hud.judging.regressions import read as regressions
from hud.judging.regressions.groups import CauseLines
from hud.judging.regressions.read import COLUMNS, MOST_ROWS, NOBODY, Counts, Scope
from hud.models import Regression, Stream
from hud.pages.query_string import number, one_of, words
from hud.pages.regressions import detail
from hud.runs.branches import branch_or_default
from hud.sql import fetch_tuples
from hud.states.regressions import ACTIVE, TOLD, Event, RegressionState
from runner.schema.devices import is_named

_TABS: dict[str, tuple[Sequence[str], bool | None]] = {  # states, and whether they are muted
    "inbox": (TOLD, False),
    "mine": (TOLD, False),
    "suspects": ([RegressionState.SUSPECT], False),
    "resolved": ([RegressionState.RESOLVED], None),
    "accepted": ([RegressionState.ACCEPTED], None),
    "dismissed": ([RegressionState.DISMISSED], None),
    "muted": (ACTIVE, True),
}
TABS = tuple(_TABS)
_NIGHTS = timedelta(days=28)
HEADER = (*COLUMNS.names, "group", "group_cause", "group_size")


@dataclass(frozen=True)
class RegressionFilters:
    tab: str = one_of(*TABS, default="inbox", is_hidden=True)
    state: str = one_of(*RegressionState, is_hidden=True)  # exactly this one, in place of a tab
    arch: str = words(100, label="Arch", blank="all")
    mode: str = words(40, is_hidden=True)
    dtype: str = words(40, is_hidden=True)
    base: str = words(210, is_hidden=True)  # sides: what first moved after the one and not after the other
    head: str = words(210, is_hidden=True)
    suite: str = words(60, label="Suite", blank="all")
    branch: str = words()
    owner: str = words(150, label="Owner", blank="anyone")  # a name, or `NOBODY`
    open: int | None = number(names=("open", "id"))  # the one whose history is shown; `id` is the old name

    def query(self, stream: Stream) -> str:
        """Return the query string of what is counted."""
        names = ("arch", "mode", "dtype", "base", "head")
        return urlencode({"stream": stream.name} | {n: v for n in names if (v := getattr(self, n))})

    @property
    def scope_words(self) -> str:
        """Return what the sides and the subject leave: ``after 2026-11-19, up to 2026-11-26, h200``."""
        ends = (("after", self.base), ("up to", self.head))
        times = [f"{word} {side.removeprefix('night:')}" for word, side in ends if side]
        return ", ".join([*times, *filter(None, (self.arch, self.mode, self.dtype))])

    def scope(self, stream: Stream) -> Scope:
        """Return what these filters count: 1 statement for each side, more for a night. Raise BadSide."""
        subject = {name: getattr(self, name) for name in ("arch", "mode", "dtype")}
        times = {
            name: resolve(text, stream, subject, is_base=name == "base").newest.order_time
            for name, text in (("base", self.base), ("head", self.head))
            if text
        }
        return Scope(stream, **subject, base=times.get("base"), head=times.get("head"))


@dataclass
class RegressionsPage:
    causes: list[CauseLines]
    counts: Counts  # of what waits, in all tabs the same
    detail: detail.Detail | None  # of the one that is open
    archs: list[str]
    suites: list[str]
    owners: list[str]
    opened: dict[str, int]  # in 28 nights, with what became of them
    truncated: bool
    may_decide: bool = False  # the reader
    others: str = ""  # the rest of the page's query, after an &

    @property
    def sections(self) -> list[tuple[str, list[CauseLines]]]:
        """Return the causes under their headings: those that only one run shows first."""
        parts: dict[str, list[CauseLines]] = {"In one run so far": [], "In several runs": []}
        for cause in self.causes:
            parts["In one run so far" if cause.is_new else "In several runs"].append(cause)
        return [(title, causes) for title, causes in parts.items() if causes]

    @property
    def new(self) -> int:
        return sum(cause.is_new for cause in self.causes)

    @property
    def neighbours(self) -> tuple[int | None, int | None]:
        """Return what the rows before and after the open one open."""
        if not (self.detail and self.detail.cause in self.causes):
            return None, None
        opened = [cause.first.pk for _title, causes in self.sections for cause in causes]
        order = [None, *opened, None]
        place = order.index(self.detail.cause.first.pk)
        return order[place - 1], order[place + 1]

    def to_rows(self) -> list[dict[str, Any]]:
        return [
            {**COLUMNS.row(line), "group": number, "group_cause": cause.why, "group_size": cause.experiments}
            for number, cause in enumerate(self.causes, 1)
            for line in cause.lines
        ]


def _rows(scope: Scope, filters: RegressionFilters, user: User | None) -> list[Regression]:
    """Return what a tab shows, or those of exactly one state; `mine` is empty without a login."""
    if filters.branch not in ("", branch_or_default("")):
        return []  # regressions are of the default branch
    states, is_muted = ([filters.state], None) if filters.state else _TABS[filters.tab]
    is_mine = filters.tab == "mine" and not filters.state
    return regressions.rows(
        scope,
        states=states,
        is_muted=is_muted,
        suite=filters.suite,
        owner=filters.owner,
        owner_id=(user.pk if user else 0) if is_mine else None,
    )


def stream_of(pk: int) -> Stream | None:
    """Return the stream of a regression, None if there is none."""
    return Stream.objects.filter(series__regressions=pk).first()


def read(stream: Stream, filters: RegressionFilters, user: User | None) -> RegressionsPage:
    """Return the page of a stream, in 7 statements, and those of its sides and of a detail. Raise
    BadSide."""
    scope = filters.scope(stream)
    found = _rows(scope, filters, user)
    shown = found[:MOST_ROWS]
    opened = [one for one in shown if one.pk == filters.open]
    if filters.open and not opened:
        named = Regression.objects.filter(pk=filters.open).select_related("series")
        opened = regressions.complete(list(named))
    regressions.add_recent([*shown, *opened])
    choices = fetch_tuples(
        f"""
        SELECT DISTINCT e.arch, e.suite, owner.username FROM hud_regression own {regressions.JOINS}
        LEFT JOIN auth_user owner ON owner.id = own.owner_id
        WHERE series.stream_id = %(stream)s AND own.state = ANY(%(active)s)
        """,  # noqa: S608 — constants  # nosec B608
        {"stream": stream.pk, "active": list(ACTIVE)},
    )
    causes = regressions.grouped(shown)
    return RegressionsPage(
        causes=causes,
        counts=regressions.count(scope),
        detail=detail.read(opened[0], causes) if opened else None,
        archs=sorted({arch for arch, _suite, _owner in choices if is_named(arch) or arch == filters.arch}),
        suites=sorted({suite for _arch, suite, _owner in choices}),
        owners=[NOBODY, *sorted({owner for _arch, _suite, owner in choices if owner})],
        opened=_opened(stream),
        truncated=len(found) > MOST_ROWS,
    )


def _opened(stream: Stream) -> dict[str, int]:
    """Return what became of the regressions that began in 28 nights and were more than a suspect."""
    (counts,) = fetch_tuples(
        """
        SELECT count(*), count(*) FILTER (WHERE %(confirmed)s = ANY(events)),
            count(*) FILTER (WHERE %(dismissed)s = ANY(events))
        FROM hud_regression own CROSS JOIN LATERAL (
            SELECT array_agg(event) AS events, array_agg(after) AS states
            FROM hud_regressionevent WHERE regression_id = own.id) happened
        WHERE own.since > %(since)s AND %(open)s = ANY(states)
            AND (SELECT stream_id FROM hud_series WHERE id = own.series_id) = %(stream)s
        """,
        {
            "stream": stream.pk,
            "since": timezone.now() - _NIGHTS,
            "confirmed": Event.CONFIRMED_BY_PAIRS,
            "dismissed": Event.NOT_REPRODUCED,
            "open": RegressionState.OPEN,
        },
    )
    return dict(zip(("opened", "confirmed", "dismissed"), counts, strict=True))
