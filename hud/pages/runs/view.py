"""The list of runs, newest first."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from django.db.models import Max, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.models import Point, Run, Series, SidePoint, State
from hud.pages import data, query_string, streams
from hud.pages.query_string import number, one_of, without, words
from hud.points.streams import with_results
from hud.runs import lines
from hud.runs.branches import stored_names
from hud.runs.lines import RunLine
from hud.runs.streams import named as streams_named
from hud.tables.formatting import address, ago, duration, plain, run_link
from hud.tables.html import NOTHING, badge_html, dim, join, link, span
from hud.tables.table import Column, DataTable
from hud.templatetags.hud_tags import commit
from runner.suites import SUITES

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


def _tick(pk: int) -> SafeString:
    return SafeString(
        f'<input type="checkbox" name="side" value="run:{pk}" form="compare" aria-label="Compare run {pk}">'
    )


def _state(run: Run) -> SafeString:
    regressed = NOTHING
    if run.regressed:
        badge = badge_html("regressed", f"{run.regressed} regressed")
        regressed = link(f"{address(run.pk, 'run')}?show=regressed#results", badge, css="found")
    return join(badge_html(run.state, title=run.reason), regressed)


def _title(line: RunLine) -> SafeString:
    reason = line.run.reason if len(line.run.reason) <= 120 else f"{line.run.reason[:119]}…"
    return join(line.title, span(" · ".join(line.origin), "fact"), span(reason, "reason fact"))


def _commit(line: RunLine, others: Mapping[str, str]) -> SafeString:
    branch: SafeString = dim(line.branch)
    if line.other_branch:
        query = f"?{urlencode({'branch': line.branch})}{others['branch']}"
        branch = link(query, line.branch, css="tag", title="branch")
    return join(branch, commit(line.run.commit))


_RUNS = DataTable[RunLine, Mapping[str, str]](  # the page has the rest of its query, for links of each name
    *lines.COLUMNS.columns,
    Column("", "Compare", "run.pk", show=_tick, css="tick", hides_title=True),
    Column("", "Run", "run.pk", show=run_link, is_head=True),
    Column("", "State", "run", show=_state, cell_css="states"),
    Column(
        "", "Stream", "run.stream.name",
        draw=lambda line, page: link(f"?stream={(name := line.run.stream.name)}{page['stream']}", name),
    ),
    Column("", "Title", _title, cell_css="title"),
    Column("", "Branch and commit", draw=_commit, cell_css="place"),
    Column("", "Host", lambda line: join(line.host, dim(line.asked.arch)), cell_css="host-name"),
    Column(
        "", "Tasks", css="num", label="tasks",
        value=lambda line: f"{line.done} of {line.total}" if line.total else "",
    ),
    Column(
        "", "Duration", css="num",
        value=lambda line: "" if line.seconds is None or line.run.upload_id else duration(line.seconds),
    ),
    Column("", "Requested by", "who", cell_css="who"),
    Column("", "Created", "run.created", show=ago, cell_css="when"),
)  # fmt: skip


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


def run_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(RunFilters, request.GET, data_format)
    if filters.stream:
        streams.of_request(request)
    matching, unknown = _matching(filters)
    page = matching.filter(pk__lt=filters.before) if filters.before else matching
    ids = list(page.order_by("-pk").values_list("pk", flat=True)[: PAGE_ROWS + 1])
    shown, total = lines.read(ids[:PAGE_ROWS]), matching.count()
    next_before = ids[PAGE_ROWS - 1] if len(ids) > PAGE_ROWS else None
    if data_format:
        return data.answer_table(data_format, "runs", _RUNS, shown, next=next_before, total=total)
    form = query_string.filter_form(
        filters,
        offered={
            "state": [(state, plain(state)) for state in State],
            "kind": list(KINDS.items()),
            "suite": sorted({*SUITES, filters.suite} - {""}),
            "stream": [stream.name for stream in with_results()],
        },
        suggested={"branch": sorted({line.branch for line in shown})},
        clear=reverse("runs") if request.GET else "",
    )
    others = {name: without(request.GET, name, "before") for name in ("stream", "branch")}
    context = {
        "lines": shown,
        "runs_html": _RUNS.html(shown, others, css="runs blocks", data_rows="data-rows"),
        "total": total,
        "next_before": next_before,
        "unknown": unknown,
        "form": form,
        "filters": filters,
        "complaints": complaints,
    }
    return render(request, "runs/runs.html", context)


def _matching(filters: RunFilters) -> tuple[QuerySet[Run], list[str]]:
    """Return the runs that match, and the commits of the filter that no run has."""
    runs, unknown = Run.objects.all(), list[str]()
    if filters.state:
        runs = runs.filter(state=filters.state)
    if filters.stream:
        runs = runs.filter(stream__in=streams_named(filters.stream))
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
