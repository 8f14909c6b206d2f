"""Regressions, grouped by cause and the most certain and largest first; and one of them with its history."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.utils import timezone

from hud.judging.compare.sides import resolve
from hud.judging.regressions.counts import JOINS, Counts, Scope, cause_key, count
from hud.judging.regressions.groups import experiments_of_runs, group, score
from hud.judging.regressions.states import ACTIVE, TOLD, Event, RegressionState, possible
from hud.models import (
    Cause,
    Environment,
    Experiment,
    Metric,
    Regression,
    RegressionEvent,
    Run,
    Series,
    Stream,
)
from hud.pages.hosts.pairs import Builds, Rerun
from hud.pages.query_string import number, one_of, words
from hud.pages.regressions import bisects
from hud.pages.regressions.bisects import BisectView
from hud.points.facts import fact_name
from hud.points.kernels import known_between
from hud.runs.branches import branch_or_default
from hud.sql import attach, by_id, fetch_models, fetch_tuples, int_array
from hud.tables.table import DataTable, experiment_of
from runner.schema.devices import is_named

_TABS: dict[str, tuple[Sequence[RegressionState], bool | None]] = {  # states, and whether they are muted
    "inbox": (TOLD, False),
    "mine": (TOLD, False),
    "suspects": ([RegressionState.SUSPECT], False),
    "resolved": ([RegressionState.RESOLVED], None),
    "accepted": ([RegressionState.ACCEPTED], None),
    "dismissed": ([RegressionState.DISMISSED], None),
    "muted": (ACTIVE, True),
}
TABS = tuple(_TABS)
MOST_ROWS = 500
NOBODY = "nobody"
_NIGHTS = timedelta(days=28)
_SAME_FACTS = {"date"}  # of an environment, that change every night
COLUMNS = DataTable(f"""
    id=pk state stream=series.stream.name {experiment_of("series.experiment")} metric=series.metric.name
    unit=series.metric.unit direction=series.metric.direction before after change factor points kind cause
    canaries since opened cause_id=cause_row_id first_run=first_run_id last_good_run=last_good_run_id
    base_commit=last_good_run?.commit head_commit=first_run?.commit owner=owner?.username note link
    muted_until state_since
""")
_EVENT = DataTable("at who event before after note run=run_id")
HEADER = (*COLUMNS.names, "group", "group_cause", "group_size")


@dataclass(frozen=True)
class RegressionFilters:
    """The page's query string; '' means any."""

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

    def scope(self, stream: Stream | None) -> Scope:
        """Return what these filters count: 1 statement for each side, more for a night. Raise BadSide."""
        subject = {name: getattr(self, name) for name in ("arch", "mode", "dtype")}
        times = {
            name: resolve(text, stream, subject, is_base=name == "base").newest.order_time
            for name, text in (("base", self.base), ("head", self.head))
            if text and stream
        }
        return Scope(stream, **subject, base=times.get("base"), head=times.get("head"))


@dataclass(frozen=True)
class CauseLines:
    """Regressions with one cause; `words` tell it for a group of several experiments."""

    why: str
    lines: list[Regression]
    words: str = ""

    @property
    def first(self) -> Regression:
        return self.lines[0]

    @cached_property
    def experiments(self) -> int:
        return len({line.series.experiment_id for line in self.lines})

    @property
    def ids(self) -> str:
        """Return the ids of all its regressions, as a box of the selection sends them."""
        return " ".join(str(line.pk) for line in self.lines)

    @property
    def is_new(self) -> bool:
        """Return whether only one night shows it so far."""
        return all(line.points <= 1 for line in self.lines)


@dataclass(frozen=True)
class Detail:
    """One regression with what happened to it, what a person can do, and what differs in its environment."""

    regression: Regression
    events: list[RegressionEvent]
    actions: list[Event]
    environment: list[tuple[str, str, str]]  # fact, before, after
    bisect: tuple[BisectView | None, str]  # the newest, and why another cannot start
    rerun: Rerun
    cause: CauseLines | None = None  # that it belongs to, where that is on the page
    code: tuple[str, str] | None = None  # sides of the page that compares kernels

    @property
    def others(self) -> list[Regression]:
        """Return the others of its cause: a decision is one on all of them."""
        return [line for line in self.cause.lines if line is not self.regression] if self.cause else []


@dataclass(frozen=True)
class RegressionsPage:
    causes: list[CauseLines]
    counts: Counts  # of what waits, in all tabs the same
    detail: Detail | None
    archs: list[str]
    suites: list[str]
    owners: list[str]
    opened: dict[str, int]  # in 28 nights, with what became of them
    truncated: bool

    @property
    def sections(self) -> list[tuple[str, list[CauseLines]]]:
        """Return the causes under their headings: those of the last night first."""
        parts = [
            ("New tonight", [cause for cause in self.causes if cause.is_new]),
            ("Open for longer", [cause for cause in self.causes if not cause.is_new]),
        ]
        return [(title, causes) for title, causes in parts if causes]

    @property
    def new(self) -> int:
        return sum(cause.is_new for cause in self.causes)

    @property
    def neighbours(self) -> tuple[int | None, int | None]:
        """Return what the rows before and after the open one open."""
        if not (self.detail and self.detail.cause):
            return None, None
        rows = [cause for _title, causes in self.sections for cause in causes]
        order = [None, *(cause.first.pk for cause in rows), None]
        place = order.index(self.detail.cause.first.pk)
        return order[place - 1], order[place + 1]

    def to_rows(self) -> list[dict[str, Any]]:
        return [
            {**COLUMNS.row(line), "group": number, "group_cause": cause.why, "group_size": cause.experiments}
            for number, cause in enumerate(self.causes, 1)
            for line in cause.lines
        ]


def _of_tab(tab: str, user: User | None) -> tuple[str, dict[str, Any]]:
    """Return the condition of a tab's regressions, with its parameters."""
    if tab == "all":
        return "true", {}
    states, muted = _TABS[tab]
    texts = ["one.state = ANY(%(states)s)"]
    if muted is not None:
        texts.append(f"coalesce(one.muted_until > now(), false) = {muted}")
    if tab == "mine":
        texts.append("one.owner_id = %(user)s")
    return " AND ".join(texts), {"states": list(states), "user": user.pk if user else None}


def stream_of(pk: int) -> Stream | None:
    """Return the stream of a regression, None if there is none."""
    condition = """WHERE id = (SELECT s.stream_id FROM hud_series s
        JOIN hud_regression r ON r.series_id = s.id WHERE r.id = %(pk)s)"""
    return next(iter(fetch_models(Stream, condition, {"pk": pk})), None)


def read(stream: Stream, filters: RegressionFilters, user: User | None) -> RegressionsPage:
    """Return the page of a stream, in 7 statements, 20 with a detail, and those of its sides. Raise
    BadSide."""
    scope = filters.scope(stream)
    found = _rows(filters, user, scope)
    shown = found[:MOST_ROWS]
    add_recent(shown)
    chosen = next((one for one in shown if one.pk == filters.open), None)
    if filters.open and chosen is None:
        opened = complete(list(Regression.objects.filter(pk=filters.open).select_related("series")))
        add_recent(opened)
        chosen = next(iter(opened), None)
    choices = fetch_tuples(
        f"""
        SELECT DISTINCT e.arch, e.suite, owner.username FROM hud_regression one {JOINS}
        LEFT JOIN auth_user owner ON owner.id = one.owner_id
        WHERE series.stream_id = %(stream)s AND one.state = ANY(%(active)s)
        """,  # noqa: S608 — constants  # nosec B608
        {"stream": stream.pk, "active": list(ACTIVE)},
    )
    causes = grouped(shown)
    return RegressionsPage(
        causes=causes,
        counts=count(scope),
        detail=_detail(chosen, causes) if chosen else None,
        archs=sorted({arch for arch, _suite, _owner in choices if is_named(arch) or arch == filters.arch}),
        suites=sorted({suite for _arch, suite, _owner in choices}),
        owners=[NOBODY, *sorted({owner for _arch, _suite, owner in choices if owner})],
        opened=_opened(stream),
        truncated=len(found) > MOST_ROWS,
    )


def _opened(stream: Stream) -> dict[str, int]:
    """Return what became of the regressions that were opened in 28 nights."""
    rows = fetch_tuples(
        """
        SELECT count(*), count(*) FILTER (WHERE %(confirmed)s = ANY(events)),
            count(*) FILTER (WHERE %(dismissed)s = ANY(events))
        FROM hud_regression one CROSS JOIN LATERAL (
            SELECT array_agg(event) AS events FROM hud_regressionevent WHERE regression_id = one.id) happened
        WHERE one.opened > %(since)s
            AND (SELECT stream_id FROM hud_series WHERE id = one.series_id) = %(stream)s
        """,
        {
            "stream": stream.pk,
            "since": timezone.now() - _NIGHTS,
            "confirmed": Event.CONFIRMED_BY_PAIRS,
            "dismissed": Event.NOT_REPRODUCED,
        },
    )
    return dict(zip(("opened", "confirmed", "dismissed"), rows[0], strict=True))


def waiting(scope: Scope) -> list[CauseLines]:
    """Return the causes of what waits for somebody, without recent values: 6 statements."""
    return grouped(_rows(RegressionFilters(), None, scope)[:MOST_ROWS])


def listed(filters: RegressionFilters, stream: Stream | None) -> list[dict[str, Any]]:
    """Return the rows of the API's list, newest first, of one stream or of all."""
    return COLUMNS.rows(_rows(filters, None, filters.scope(stream))[:MOST_ROWS])


def _rows(filters: RegressionFilters, user: User | None, scope: Scope) -> list[Regression]:
    if filters.branch and filters.branch != branch_or_default(""):
        return []  # regressions are of the default branch
    state = ("one.state = %(state)s", {"state": filters.state})
    condition, params = state if filters.state else _of_tab(filters.tab, user)
    texts = [condition, scope.condition]
    if filters.suite:
        texts.append("e.suite = %(suite)s")
    if filters.owner == NOBODY:
        texts.append("one.owner_id IS NULL")
    elif filters.owner:
        texts.append("one.owner_id = (SELECT id FROM auth_user WHERE username = %(owner)s)")
    chosen = f"{JOINS} WHERE {' AND '.join(texts)} ORDER BY one.since DESC, one.id LIMIT {MOST_ROWS + 1}"
    params = {**params, **scope.params, "suite": filters.suite, "owner": filters.owner}
    return complete(fetch_models(Regression, chosen, params, series=Series), scope.stream)


def complete(rows: list[Regression], stream: Stream | None = None) -> list[Regression]:
    """Add what rows with their series show: 3 statements, 4 with owners, 1 more without the `stream` of all.
    Hundreds share a few runs and metrics, which are read once and not joined to every row."""
    series = [one.series for one in rows]
    attach(series, "experiment", by_id(Experiment, [one.experiment_id for one in series]))
    attach(series, "metric", by_id(Metric, [one.metric_id for one in series]))
    streams = {stream.pk: stream} if stream else by_id(Stream, [one.stream_id for one in series])
    attach(series, "stream", streams)
    attach(rows, "owner", by_id(User, [one.owner_id for one in rows]))
    names = ("first_run", "last_good_run", "latest_run")
    runs = by_id(Run, [getattr(one, f"{name}_id") for one in rows for name in names])
    for name in names:
        attach(rows, name, runs)
    return rows


def add_recent(regressions: Sequence[Regression]) -> None:
    """Add the newest values of their series: 1 statement."""
    statement = "SELECT series_id, class_key, recent FROM hud_seriesstate WHERE series_id = ANY(%s::int[])"
    rows = fetch_tuples(statement, [int_array(one.series_id for one in regressions)])
    recent = {(series, class_key): values for series, class_key, values in rows}
    for one in regressions:
        one.recent = recent.get((one.series_id, one.class_key), ())


def grouped(regressions: Sequence[Regression]) -> list[CauseLines]:
    """Return one row for each cause, the most certain and largest first, those of hosts last: 1 statement."""
    by_cause: dict[int, list[Regression]] = {}
    for one in regressions:
        by_cause.setdefault(cause_key(one), []).append(one)
    measured = experiments_of_runs(regressions)
    rows = []
    for members in by_cause.values():
        parts = group(members, measured)
        own = [one for part in parts for one in part.members]
        largest = max(parts, key=lambda part: len(part.members))
        rows.append((max(map(score, members)), CauseLines(largest.why, own, largest.words())))
    rows.sort(key=lambda row: (row[1].why == "host", -row[0], row[1].first.pk))
    return [row for _score, row in rows]


def causes(stream: Stream | None, state: str) -> list[dict[str, Any]]:
    """Return the newest causes with a regression, of one stream or of all, for the API: 2 statements."""
    wanted = {"regressions__isnull": False, "stream": stream, "regressions__state": state}
    found = Cause.objects.filter(**{name: value for name, value in wanted.items() if value not in ("", None)})
    newest = found.select_related("stream").prefetch_related("regressions").order_by("-night", "-pk")
    return [cause_row(cause) for cause in newest.distinct()[:MOST_ROWS]]


def cause_row(cause: Cause) -> dict[str, Any]:
    members = sorted(cause.regressions.all(), key=lambda one: one.pk)
    return {
        **{name: getattr(cause, name) for name in ("id", "night", "title", "created")},
        "stream": cause.stream.name,
        "series": len({one.series_id for one in members}),
        "states": Counter(one.state for one in members),
        "regressions": [one.pk for one in members],
    }


def with_history(one: Regression, events: Iterable[RegressionEvent]) -> dict[str, Any]:
    """Return a regression with its history for JSON."""
    return {**COLUMNS.row(one), "history": _EVENT.rows(events)}


def _detail(one: Regression, causes: Sequence[CauseLines]) -> Detail:
    events = list(one.events.order_by("pk"))
    cause = next((found for found in causes if one in found.lines), None)
    runs = [one.last_good_run_id, one.first_run_id]
    code = None
    if len(known_between([one])) == len(set(runs)):
        base, head = (f"run:{run}/experiment:{one.series.experiment_id}" for run in runs)
        code = base, head
    actions = possible(RegressionState(one.state))
    builds = Builds()
    rerun = builds.of_regressions([one])[one.pk]
    bisect = bisects.newest(one, builds.accelerators)
    return Detail(one, events, actions, _differences(one), bisect, rerun, cause, code)


def _differences(one: Regression) -> list[tuple[str, str, str]]:
    """Return the facts of the environment that differ from the last good run to the first that moved."""
    runs = [one.first_run_id, one.last_good_run_id]
    used = Environment.objects.filter(point__series=one.series_id, point__run__in=runs)
    facts: dict[int | None, dict[str, Any]] = dict(used.values_list("point__run", "facts"))
    before, after = facts.get(one.last_good_run_id), facts.get(one.first_run_id)
    if not before or not after:
        return []
    names = sorted({*before, *after} - _SAME_FACTS)
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [(fact_name(name), _text(old), _text(new)) for name, old, new in pairs if old != new]


def _text(value: Any) -> str:
    return "none" if value in (None, "", {}) else str(value)
