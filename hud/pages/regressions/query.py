"""Regressions, grouped by cause and the most certain and largest first; and one of them with its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from hud.judging.regressions import causes
from hud.judging.regressions.causes import Group, Moved
from hud.judging.regressions.states import ACTIVE, Canaries, Event, RegressionKind, RegressionState, possible
from hud.models import Environment, Experiment, Metric, Regression, RegressionEvent, SeriesState
from hud.pages.regressions import bisects
from hud.pages.regressions.bisects import BisectPanel
from hud.pages.suite.query import identity
from hud.runs.branches import branch_or_default

MOST_ROWS = 500
TABS = ("inbox", "mine", "suspects", "resolved", "accepted", "dismissed", "muted")
WAITING = (RegressionState.OPEN, RegressionState.CONFIRMED, RegressionState.ACKNOWLEDGED)
_SAME_FACTS = {"date"}  # of an environment, that change every night


@dataclass(frozen=True)
class Filters:
    """The page's query string; '' means any."""

    tab: str = "inbox"
    state: str = ""  # exactly this one, in place of a tab
    arch: str = ""
    suite: str = ""
    branch: str = ""
    id: int | None = None  # the one whose history is shown


@dataclass(frozen=True)
class Line:
    """A regression with the state of its series."""

    regression: Regression
    experiment: Experiment
    metric: Metric
    recent: list[float | None] = field(default_factory=list)  # of its series, oldest first

    def to_row(self) -> dict[str, Any]:
        one = self.regression
        runs = {"first_run": one.first_run, "last_good_run": one.last_good_run}
        return {
            "id": one.pk,
            "state": one.state,
            **identity(self.experiment),
            "experiment": self.experiment.pk,
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "direction": self.metric.direction,
            **{name: getattr(one, name) for name in ("before", "after", "change", "factor", "points")},
            **{name: getattr(one, name) for name in ("kind", "cause", "canaries", "since", "opened")},
            **{name: run.pk if run else None for name, run in runs.items()},
            "base_commit": one.last_good_run.commit if one.last_good_run else "",
            "head_commit": one.first_run.commit if one.first_run else "",
            "owner": one.owner.get_username() if one.owner else "",
            **{name: getattr(one, name) for name in ("note", "link", "muted_until", "state_since")},
        }


@dataclass(frozen=True)
class Cause:
    """Lines with one cause; `words` tell it for a group of several experiments."""

    why: str
    lines: list[Line]
    words: str = ""

    @property
    def first(self) -> Line:
        return self.lines[0]

    @property
    def experiments(self) -> int:
        return len({line.experiment.pk for line in self.lines})


@dataclass(frozen=True)
class Detail:
    """One regression with what happened to it, what a person can do, and what differs in its environment."""

    line: Line
    events: list[RegressionEvent]
    actions: list[Event]
    environment: list[tuple[str, str, str]]  # fact, before, after
    bisect: BisectPanel


@dataclass(frozen=True)
class RegressionsPage:
    causes: list[Cause]
    counts: dict[str, int]  # by tab
    detail: Detail | None
    archs: list[str]
    suites: list[str]
    truncated: bool

    def to_rows(self) -> list[dict[str, Any]]:
        return [
            {**line.to_row(), "group": number, "group_cause": cause.why, "group_size": cause.experiments}
            for number, cause in enumerate(self.causes, 1)
            for line in cause.lines
        ]


def read(filters: Filters, user: User | None) -> RegressionsPage:
    """Return the page, in 7 statements, 17 with a detail."""
    found = _rows(filters, user)
    lines = _lines(found[:MOST_ROWS])
    chosen = next((line for line in lines if line.regression.pk == filters.id), None)
    if filters.id and chosen is None:
        chosen = next(iter(_lines(list(_related(Regression.objects.filter(pk=filters.id))))), None)
    active = Regression.objects.filter(state__in=ACTIVE)
    choices = list(
        active.values_list("series__experiment__arch", "series__experiment__suite").distinct().order_by()
    )
    return RegressionsPage(
        causes=grouped(lines),
        counts=counts(user),
        detail=_detail(chosen) if chosen else None,
        archs=sorted({arch for arch, _suite in choices}),
        suites=sorted({suite for _arch, suite in choices}),
        truncated=len(found) > MOST_ROWS,
    )


def waiting() -> list[Cause]:
    """Return the causes of what waits for somebody: 4 statements."""
    return grouped(_lines(list(_related(Regression.objects.filter(_in_tab("inbox", None)))[:MOST_ROWS])))


def line_of(pk: int) -> Line | None:
    """Return a regression for the API, None if there is none."""
    return next(iter(_lines(list(_related(Regression.objects.filter(pk=pk))))), None)


def listed(filters: Filters) -> list[Line]:
    """Return the regressions of the API's list, newest first."""
    return _lines(_rows(filters, None)[:MOST_ROWS])


def _rows(filters: Filters, user: User | None) -> list[Regression]:
    wanted = Q(state=filters.state) if filters.state else _in_tab(filters.tab, user)
    if filters.arch:
        wanted &= Q(series__experiment__arch=filters.arch)
    if filters.suite:
        wanted &= Q(series__experiment__suite=filters.suite)
    if filters.branch and filters.branch != branch_or_default(""):
        return []  # regressions are of the default branch
    return list(_related(Regression.objects.filter(wanted))[: MOST_ROWS + 1])


def _related(found: QuerySet[Regression]) -> QuerySet[Regression]:
    names = ("series__experiment", "series__metric", "first_run", "last_good_run", "latest_run", "owner")
    return found.select_related(*names).order_by("-since", "pk")


def _in_tab(tab: str, user: User | None) -> Q:
    if tab == "all":
        return Q()
    muted = Q(muted_until__gt=timezone.now())
    if tab == "muted":
        return muted & Q(state__in=ACTIVE)
    if tab == "suspects":
        return Q(state=RegressionState.SUSPECT) & ~muted
    if tab in {"resolved", "accepted", "dismissed"}:
        return Q(state=tab)
    waiting = Q(state__in=WAITING) & ~muted
    return waiting & Q(owner=user) if tab == "mine" else waiting


def counts(user: User | None) -> dict[str, int]:
    """Return how many regressions each tab has."""
    wanted = {tab: Count("pk", filter=_in_tab(tab, user)) for tab in TABS if tab != "mine" or user}
    found: dict[str, int] = Regression.objects.aggregate(**wanted)
    return found


def _lines(found: Sequence[Regression]) -> list[Line]:
    """Add the newest values of their series: 1 statement."""
    recent = {
        (state.series_id, state.class_key): state.recent
        for state in SeriesState.objects.filter(series__in=[one.series_id for one in found]).only(
            "series_id", "class_key", "recent"
        )
    }
    return [
        Line(one, one.series.experiment, one.series.metric, recent.get((one.series_id, one.class_key), []))
        for one in found
    ]


def grouped(lines: Sequence[Line]) -> list[Cause]:
    """Group lines by cause: 1 statement."""
    by_key = {line.regression.pk: line for line in lines}
    runs = {line.regression.first_run_id for line in lines} - {None}
    counted = dict(
        SeriesState.objects.filter(run__in=runs)
        .values("run")
        .annotate(n=Count("series__experiment", distinct=True))
        .values_list("run", "n")
    )
    groups = causes.group([_moved(line) for line in lines], counted)
    return [_cause(one, [by_key[key] for key in one.keys]) for one in groups]


def _moved(line: Line) -> Moved:
    one = line.regression
    return Moved(
        key=one.pk,
        experiment=line.experiment.pk,
        family=(line.experiment.suite, line.experiment.backend, line.experiment.arch),
        run=one.first_run_id,
        last_good_run=one.last_good_run_id,
        change=one.change,
        factor=one.factor,
        worse_up=line.metric.direction == "down",
        failed=one.kind == RegressionKind.FAILURE,
        host=one.latest_run.host_name if one.canaries == Canaries.MOVED and one.latest_run else "",
        quiet_host=one.canaries == Canaries.QUIET,
    )


def _cause(group: Group, lines: list[Line]) -> Cause:
    cause = Cause(group.why, lines)
    first = lines[0]
    host = first.regression.first_run.host_name if first.regression.first_run else ""
    if group.why == "host" and first.regression.canaries == Canaries.MOVED:
        return Cause(group.why, lines, first.regression.cause)
    if group.why == "host":
        words = f"Most of what run {first.regression.first_run_id} measured moved alike: look at the host"
        return Cause(group.why, lines, f"{words} {host}" if host else words)
    if group.why == "backend":
        words = f"{cause.experiments} cases of {first.experiment.suite} on {first.experiment.backend}"
        return Cause(group.why, lines, f"{words} moved between the same two runs")
    return cause


def _detail(line: Line) -> Detail:
    one = line.regression
    events = list(one.events.select_related("run").order_by("pk"))
    actions = possible(RegressionState(one.state))
    return Detail(line, events, actions, _differences(one), bisects.panel(one))


def _differences(one: Regression) -> list[tuple[str, str, str]]:
    """Return the facts of the environment that differ from the last good run to the first that moved."""
    runs = [one.first_run_id, one.last_good_run_id]
    used = Environment.objects.filter(measurement__series=one.series_id, measurement__run__in=runs)
    facts: dict[int | None, dict[str, Any]] = dict(used.values_list("measurement__run", "facts"))
    before, after = facts.get(one.last_good_run_id), facts.get(one.first_run_id)
    if not before or not after:
        return []
    names = sorted({*before, *after} - _SAME_FACTS)
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [(name, _text(old), _text(new)) for name, old, new in pairs if old != new]


def _text(value: Any) -> str:
    return "none" if value in (None, "", {}) else str(value)
