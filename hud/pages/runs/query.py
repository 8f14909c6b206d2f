"""The list of runs, newest first."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db.models import Max, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from hud.models import ACTIVE, Host, Point, Run, RunRequest, Series, SidePoint, State, Stream, Upload
from hud.pages.query_string import number, one_of, words
from hud.runs import streams
from hud.runs.branches import branch_or_default, other_branch, stored_names
from hud.sql import attach, by_id, fetch_models, fetch_tuples, int_array
from hud.tables.table import DataTable

PAGE_ROWS = 50
# Kinds of runs with their names on the page. A night is a schedule's run or an upload with a commit of the
# default branch; a pull request is any other branch.
KINDS = {
    "night": "night",
    "person": "person's",
    "pull_request": "pull request",
    "rerun": "on a host",
    "upload": "upload",
}
RANGE = ".."
COLUMNS = DataTable("""
    run=run.pk state=run.state reason=run.reason title host arch=asked.arch source=run.source
    commit=run.commit branch filename=run.upload?.filename external_id=run.external_id done total
    created=run.created started=run.started finished=run.finished requested_by=asked.requested_by
    retry_of=asked.retry_of_id upload=run.upload_id seconds regressed=run.regressed stream=run.stream.name
""")


@dataclass(frozen=True)
class RunFilters:
    """The list's query string; '' means any."""

    q: str = words(label="Search", type="search", placeholder="title, file or commit", data_key="/")
    branch: str = words(label="Branch", placeholder="any")
    # the beginning of one, or a range old..new with both ends
    commit: str = words(130, label="Commit or range", placeholder="ca3512f or old..new")
    suite: str = words(60, label="Suite")
    stream: str = words(60, label="Stream", blank="all")  # its name
    kind: str = one_of(*KINDS, label="Kind")
    state: str = one_of(*State, label="State")
    host: str = words(100, label="Host", placeholder="any")
    before: int | None = number()  # only runs with a smaller id: the next page


class OfRun:
    """What lines and pages of a run show of it."""

    run: Run

    @property
    def host(self) -> str:
        asked = self.asked.host
        return asked.name if asked else self.run.host_name

    @property
    def _file(self) -> str:
        upload = self.run.upload
        return (upload.filename or f"upload {upload.pk}") if upload else ""

    @property
    def title(self) -> str:
        return self.run.title or self._file or f"run {self.run.pk}"

    @property
    def origin(self) -> list[str]:
        """Return what distinguishes runs of one title and commit: file and external id."""
        its_id = f"id {self.run.external_id}" if self.run.external_id else ""
        return [text for text in (self._file, its_id) if text and text != self.title]

    @property
    def other_branch(self) -> str:
        return other_branch(self.run.branch)

    @property
    def branch(self) -> str:
        return branch_or_default(self.run.branch)

    @cached_property
    def asked(self) -> RunRequest:
        return self.run.request_or_empty

    @property
    def active(self) -> bool:
        return self.run.state in ACTIVE

    @property
    def seconds(self) -> float | None:
        """Return the duration, so far while it runs; None before it starts."""
        started = self.run.started
        return ((self.run.finished or timezone.now()) - started).total_seconds() if started else None


@dataclass(slots=True)
class RunLine(OfRun):
    run: Run
    done: int  # tasks that have ended
    total: int

    @property
    def who(self) -> str:
        """Return who or what asked for it: a person or key, the schedule, or the source of an upload."""
        asked = self.asked
        return asked.requested_by or ("schedule" if asked.trigger_id else "") or self.run.source


@dataclass
class RunsPage:
    lines: list[RunLine]
    total: int  # runs that match, on all pages
    next_before: int | None  # for the next page; None on the last one
    unknown: list[str] = field(default_factory=list)  # commits of the filter that no run has


def read(filters: RunFilters) -> RunsPage:
    """Return the page, in 4 statements, one more for each commit of the filter."""
    matching, unknown = _matching(filters)
    page = matching.filter(pk__lt=filters.before) if filters.before else matching
    ids = list(page.order_by("-pk").values_list("pk", flat=True)[: PAGE_ROWS + 1])
    shown = ids[:PAGE_ROWS]
    lines = _lines("WHERE one.id = ANY(%(ids)s::int[]) ORDER BY one.id DESC", {"ids": int_array(shown)})
    return RunsPage(lines, matching.count(), shown[-1] if len(ids) > PAGE_ROWS else None, unknown)


def latest(stream: Stream, limit: int) -> list[RunLine]:
    """Return the newest runs of a stream, in 2 statements, 3 with a run on a host."""
    condition = "WHERE one.stream_id = %(stream)s ORDER BY one.id DESC LIMIT %(limit)s"
    return _lines(condition, {"stream": stream.pk, "limit": limit})


def _matching(filters: RunFilters) -> tuple[QuerySet[Run], list[str]]:
    """Return the runs that match, and the commits of the filter that no run has."""
    runs, unknown = Run.objects.all(), list[str]()
    if filters.state:
        runs = runs.filter(state=filters.state)
    if filters.stream:
        runs = runs.filter(stream__in=streams.named(filters.stream))
    if filters.kind:
        runs = runs.filter(_of_kind(filters.kind))
    if filters.branch:
        runs = runs.filter(branch__in=stored_names(filters.branch))
    if filters.suite:
        series = Series.objects.filter(experiment__suite=filters.suite).values("pk")
        ends = Q(first_series__in=series) | Q(last_series__in=series)
        runs = runs.alias(first_series=_series("series_id"), last_series=_series("-series_id")).filter(
            Q(request__selection__suite=filters.suite) | ends
        )
    if filters.commit:
        within, unknown = _of_commits(filters.commit)
        runs = runs.filter(within)
    if filters.host:
        asked = Q(request__host__name__icontains=filters.host)
        runs = runs.filter(asked | Q(host_name__icontains=filters.host))
    for word in filters.q.split()[:8]:
        named = Q(title__icontains=word) | Q(upload__filename__icontains=word)
        runs = runs.filter(named | Q(commit__startswith=word) | Q(source=word))
    return runs, unknown


def _of_kind(kind: str) -> Q:
    default = Q(branch__in=stored_names())
    return {
        "night": default & (Q(request__trigger__isnull=False) | Q(upload__isnull=False) & ~Q(commit="")),
        "person": Q(request__interactive=True),
        "pull_request": ~default,
        "rerun": Q(upload__isnull=True),
        "upload": Q(upload__isnull=False),
    }[kind]


def _series(order: str) -> Coalesce:
    """Return a run's first or last series, which tell its suite. A run of three suites is found by two of
    them: looking through all of its rows would read the whole store for a suite that is rare."""
    first = (
        Subquery(model._default_manager.filter(run=OuterRef("pk")).order_by(order).values("series_id")[:1])
        for model in (Point, SidePoint)
    )
    return Coalesce(*first)


def _of_commits(text: str) -> tuple[Q, list[str]]:
    """Return the condition of a commit or of a range, and which commits no run has."""
    old, dots, new = text.partition(RANGE)
    if not dots:
        return Q(commit__startswith=text), []
    ends = {
        commit: Run.objects.filter(commit__startswith=commit).aggregate(
            first=Min("order_time"), last=Max("order_time")
        )
        for commit in (old, new.lstrip("."))
        if commit
    }
    unknown = [commit for commit, end in ends.items() if end["first"] is None]
    if unknown or len(ends) < 2:
        return Q(pk__in=[]), unknown
    times = [time for end in ends.values() for time in end.values()]
    return Q(order_time__gte=min(times), order_time__lte=max(times)) & ~Q(commit=""), []


def _lines(condition: str, params: Mapping[str, Any]) -> list[RunLine]:
    """Return the runs `one` of a condition. Of uploads only the names of files, as a receipt may be large."""
    related = """JOIN hud_stream stream ON stream.id = one.stream_id
        LEFT JOIN hud_runrequest request ON request.run_id = one.id"""
    runs = fetch_models(Run, f"{related} {condition}", params, stream=Stream, request=RunRequest)
    about = fetch_tuples(
        """
        SELECT r.id, u.filename, count(t.id) FILTER (WHERE t.state <> ALL('{queued,running}')), count(t.id)
        FROM hud_run r LEFT JOIN hud_upload u ON u.id = r.upload_id LEFT JOIN hud_task t ON t.run_id = r.id
        WHERE r.id = ANY(%(ids)s::int[]) GROUP BY r.id, u.filename
        """,
        {"ids": int_array(run.pk for run in runs)},
    )
    lines, nothing_asked = {run.pk: RunLine(run, 0, 0) for run in runs}, RunRequest()
    for pk, filename, done, total in about:
        line = lines[pk]
        line.done, line.total = done, total
        if line.run.upload_id:
            line.run.upload = Upload(pk=line.run.upload_id, filename=filename, stream=line.run.stream)
        line.asked = getattr(line.run, "request", None) or nothing_asked
    asked = [line.asked for line in lines.values()]
    attach(asked, "host", by_id(Host, [one.host_id for one in asked]))
    return list(lines.values())
