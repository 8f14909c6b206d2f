"""Regressions, grouped by cause and the most certain and largest first; and one of them with its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q

from hud.judging.regressions.causes import Group
from hud.judging.regressions.groups import groups
from hud.judging.regressions.states import ACTIVE, Canaries, Event, RegressionState, possible
from hud.models import (
    Environment,
    Experiment,
    Metric,
    Regression,
    RegressionEvent,
    Run,
    Series,
    Stream,
)
from hud.pages.compilations import known_between
from hud.pages.experiment.history import fact_name
from hud.pages.hosts.pairs import Builds, Rerun
from hud.pages.regressions import bisects
from hud.pages.regressions.bisects import BisectPanel
from hud.pages.regressions.tabs import IS_WAITING, WAITING, counts, in_tab
from hud.pages.suite.query import identity
from hud.runs.branches import branch_or_default
from hud.sql import attach, by_id, fetch_models, fetch_tuples, int_array
from runner.schema.devices import is_named

MOST_ROWS = 500
NOBODY = "nobody"
_NIGHTS = timedelta(days=28)
_WITH_SERIES = "JOIN hud_series series ON series.id = one.series_id"
_OF_STREAM = f"{_WITH_SERIES} AND series.stream_id = %(stream)s"
_SAME_FACTS = {"date"}  # of an environment, that change every night


@dataclass(frozen=True)
class Filters:
    """The page's query string; '' means any."""

    tab: str = "inbox"
    state: str = ""  # exactly this one, in place of a tab
    arch: str = ""
    suite: str = ""
    branch: str = ""
    owner: str = ""  # a name, or `NOBODY`
    open: int | None = None  # the one whose history is shown


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
            "stream": one.series.stream.name,
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

    @property
    def ids(self) -> str:
        """Return the ids of all its regressions, as a box of the selection sends them."""
        return " ".join(str(line.regression.pk) for line in self.lines)

    @property
    def is_new(self) -> bool:
        """Return whether only one night shows it so far."""
        return all(line.regression.points <= 1 for line in self.lines)


@dataclass(frozen=True)
class Detail:
    """One regression with what happened to it, what a person can do, and what differs in its environment."""

    line: Line
    events: list[RegressionEvent]
    actions: list[Event]
    environment: list[tuple[str, str, str]]  # fact, before, after
    bisect: BisectPanel
    rerun: Rerun
    cause: Cause | None = None  # that it belongs to, where that is on the page
    code: tuple[str, str] | None = None  # sides of the page that compares kernels

    @property
    def metrics(self) -> list[Line]:
        """Return the other metrics of its experiment in its group: one slower kernel moves several."""
        lines = self.cause.lines if self.cause else []
        return [line for line in lines if line is not self.line and line.experiment == self.line.experiment]

    @property
    def others(self) -> list[Line]:
        """Return those of its group of other experiments."""
        lines = self.cause.lines if self.cause else []
        return [line for line in lines if line.experiment != self.line.experiment]

    def to_json(self) -> dict[str, Any]:
        """Return the regression with its history."""
        return {**self.line.to_row(), "history": [_event(event) for event in self.events]}


@dataclass(frozen=True)
class Opened:
    """What became of the regressions that were opened in 28 nights."""

    opened: int
    confirmed: int
    dismissed: int


@dataclass(frozen=True)
class RegressionsPage:
    causes: list[Cause]
    counts: dict[str, int]  # by tab
    detail: Detail | None
    archs: list[str]
    suites: list[str]
    owners: list[str]
    opened: Opened
    truncated: bool

    @property
    def sections(self) -> list[tuple[str, list[Cause]]]:
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
    def order(self) -> list[int]:
        """Return the id that each row opens, from top to bottom."""
        return [cause.first.regression.pk for _title, causes in self.sections for cause in causes]

    def beside(self, step: int) -> int | None:
        """Return the row before (-1) or after (1) the open one."""
        one = self.detail.cause.first.regression.pk if self.detail and self.detail.cause else None
        place = self.order.index(one) + step if one in self.order else -1
        return self.order[place] if 0 <= place < len(self.order) else None

    @property
    def previous(self) -> int | None:
        return self.beside(-1)

    @property
    def following(self) -> int | None:
        return self.beside(1)

    def to_rows(self) -> list[dict[str, Any]]:
        return [
            {**line.to_row(), "group": number, "group_cause": cause.why, "group_size": cause.experiments}
            for number, cause in enumerate(self.causes, 1)
            for line in cause.lines
        ]


def stream_of(pk: int) -> Stream | None:
    """Return the stream of a regression, None if there is none."""
    return Stream.objects.filter(series__regressions=pk).first()


def read(stream: Stream, filters: Filters, user: User | None) -> RegressionsPage:
    """Return the page of a stream, in 11 statements, 24 with a detail."""
    found = _rows(filters, user, stream)
    lines = _lines(found[:MOST_ROWS])
    chosen = next((line for line in lines if line.regression.pk == filters.open), None)
    if filters.open and chosen is None:
        chosen = line_of(filters.open)
    choices = fetch_tuples(
        """
        SELECT DISTINCT e.arch, e.suite, u.username
        FROM hud_regression r JOIN hud_series s ON s.id = r.series_id AND s.stream_id = %(stream)s
        JOIN hud_experiment e ON e.id = s.experiment_id
        LEFT JOIN auth_user u ON u.id = r.owner_id WHERE r.state = ANY(%(active)s)
        """,
        {"active": list(ACTIVE), "stream": stream.pk},
    )
    causes = grouped(lines)
    return RegressionsPage(
        causes=causes,
        counts=counts(stream, user),
        detail=_detail(chosen, causes) if chosen else None,
        archs=sorted({arch for arch, _suite, _owner in choices if is_named(arch) or arch == filters.arch}),
        suites=sorted({suite for _arch, suite, _owner in choices}),
        owners=sorted({owner for _arch, _suite, owner in choices if owner}),
        opened=_opened(stream),
        truncated=len(found) > MOST_ROWS,
    )


def _opened(stream: Stream) -> Opened:
    (found,) = fetch_tuples(
        """
        SELECT count(DISTINCT r.id), count(DISTINCT r.id) FILTER (WHERE e.event = %(confirmed)s),
            count(DISTINCT r.id) FILTER (WHERE e.event = %(dismissed)s)
        FROM hud_regression r JOIN hud_series s ON s.id = r.series_id AND s.stream_id = %(stream)s
        LEFT JOIN hud_regressionevent e ON e.regression_id = r.id
        WHERE r.opened > now() - %(nights)s
        """,
        {
            "confirmed": Event.CONFIRMED_BY_PAIRS,
            "dismissed": Event.NOT_REPRODUCED,
            "nights": _NIGHTS,
            "stream": stream.pk,
        },
    )
    return Opened(*found)


def waiting(stream: Stream) -> list[Cause]:
    """Return the causes of what waits for somebody in a stream, without recent values: 6 statements."""
    condition = f"{_OF_STREAM} WHERE {IS_WAITING} ORDER BY since DESC, one.id LIMIT %(most)s"
    params = {"waiting": list(WAITING), "most": MOST_ROWS, "stream": stream.pk}
    found = fetch_models(Regression, condition, params, series=Series)
    return grouped([Line(one, one.series.experiment, one.series.metric) for one in _complete(found)])


def line_of(pk: int) -> Line | None:
    """Return a regression for the API, None if there is none."""
    found = fetch_models(Regression, f"{_WITH_SERIES} WHERE one.id = %(id)s", {"id": pk}, series=Series)
    return next(iter(_lines(_complete(found))), None)


def listed(filters: Filters, stream: Stream | None) -> list[Line]:
    """Return the regressions of the API's list, newest first, of one stream or of all."""
    return _lines(_rows(filters, None, stream)[:MOST_ROWS])


def _rows(filters: Filters, user: User | None, stream: Stream | None) -> list[Regression]:
    wanted = Q(state=filters.state) if filters.state else in_tab(filters.tab, user)
    if stream:
        wanted &= Q(series__stream=stream)
    if filters.arch:
        wanted &= Q(series__experiment__arch=filters.arch)
    if filters.suite:
        wanted &= Q(series__experiment__suite=filters.suite)
    if filters.owner:
        wanted &= Q(owner=None) if filters.owner == NOBODY else Q(owner__username=filters.owner)
    if filters.branch and filters.branch != branch_or_default(""):
        return []  # regressions are of the default branch
    found = Regression.objects.filter(wanted).select_related("series").order_by("-since", "pk")
    return _complete(list(found[: MOST_ROWS + 1]))


def _complete(rows: list[Regression]) -> list[Regression]:
    """Add what rows with their series show: 4 statements, 5 with owners. Hundreds share a few runs and
    metrics, which are read once and not joined to every row."""
    series = [one.series for one in rows]
    attach(series, "experiment", by_id(Experiment, [one.experiment_id for one in series]))
    attach(series, "metric", by_id(Metric, [one.metric_id for one in series]))
    attach(series, "stream", by_id(Stream, [one.stream_id for one in series]))
    attach(rows, "owner", by_id(User, [one.owner_id for one in rows]))
    names = ("first_run", "last_good_run", "latest_run")
    runs = by_id(Run, [getattr(one, f"{name}_id") for one in rows for name in names])
    for name in names:
        attach(rows, name, runs)
    return rows


def _lines(found: Sequence[Regression]) -> list[Line]:
    """Return the lines with the newest values of their series: 1 statement."""
    lines = [Line(one, one.series.experiment, one.series.metric) for one in found]
    add_recent(lines)
    return lines


def add_recent(lines: Sequence[Line]) -> None:
    """Add the newest values of their series: 1 statement."""
    states = fetch_tuples(
        "SELECT series_id, class_key, recent FROM hud_seriesstate WHERE series_id = ANY(%(series)s::int[])",
        {"series": int_array({line.regression.series_id for line in lines})},
    )
    recent = {(series, class_key): values for series, class_key, values in states}
    for line in lines:
        line.recent.extend(recent.get((line.regression.series_id, line.regression.class_key), []))


def grouped(lines: Sequence[Line]) -> list[Cause]:
    """Group lines by cause: 1 statement."""
    by_key = {line.regression.pk: line for line in lines}
    found = groups([line.regression for line in lines])
    return [_cause(one, [by_key[key] for key in one.keys]) for one in found]


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


def detail_of(pk: int) -> Detail | None:
    """Return a regression with its history, None if there is none."""
    line = line_of(pk)
    return _detail(line, []) if line else None


def _detail(line: Line, causes: Sequence[Cause]) -> Detail:
    one = line.regression
    events = list(one.events.order_by("pk"))
    cause = next((found for found in causes if any(other is line for other in found.lines)), None)
    runs = [one.last_good_run_id, one.first_run_id]
    code = None
    if len(known_between([one])) == len(set(runs)):
        code = (
            f"run:{runs[0]}/experiment:{line.experiment.pk}",
            f"run:{runs[1]}/experiment:{line.experiment.pk}",
        )
    actions = possible(RegressionState(one.state))
    builds = Builds()
    rerun = builds.of_regressions([one])[one.pk]
    panel = bisects.panel(one, builds.accelerators)
    return Detail(line, events, actions, _differences(one), panel, rerun, cause, code)


def _event(event: RegressionEvent) -> dict[str, Any]:
    names = ("at", "who", "event", "before", "after", "note")
    return {**{name: getattr(event, name) for name in names}, "run": event.run_id}


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
