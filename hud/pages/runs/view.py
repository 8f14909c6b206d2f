"""The list of runs, newest first."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.models import Run, State
from hud.pages import data, query_string, streams
from hud.pages.query_string import number, one_of, without, words
from hud.pages.tags import commit
from hud.points.streams import with_results
from hud.runs import lines
from hud.runs.lines import RunLine
from hud.tables.formatting import address, ago, duration, moment, plain, run_link
from hud.tables.html import NOTHING, badge_html, dim, join, link, span
from hud.tables.table import Column, DataTable
from runner.suites import SUITES

PAGE_ROWS = 50


def _tick(pk: int) -> SafeString:
    """Return the box of a run, and the button that compares it with a ticked one."""
    return SafeString(
        f'<input type="checkbox" name="side" value="run:{pk}" form="compare" aria-label="Compare run {pk}">'
        f'<button class="small" name="side" value="run:{pk}" form="compare">Compare</button>'
    )


def _state(run: Run) -> SafeString:
    regressed = NOTHING
    if run.regressed:
        badge = badge_html("regressed", f"{run.regressed} value{'s' * (run.regressed > 1)} regressed")
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


def _measured(run: Run) -> SafeString:
    """Return when it was measured: of an upload, which may be older, what its file says."""
    made = SafeString(ago(run.created))
    if not run.upload_id or run.order_time_source == "upload":
        return made
    return join(moment(run.order_time), span(join("uploaded", made), "fact"))


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
    Column("", "Measured", "run", show=_measured, cell_css="when", tooltip="commit date if known"),
)  # fmt: skip


@dataclass(frozen=True)
class RunFilters:
    q: str = words(label="Search", type="search", placeholder="title, file or commit", data_key="/")
    branch: str = words(label="Branch", placeholder="any")
    # the beginning of one, or a range old..new with both ends
    commit: str = words(130, label="Commit or range", placeholder="ca3512f or old..new")
    pull_request: int | None = number(label="Pull request", placeholder="any")
    suite: str = words(60, label="Suite")
    stream: str = words(60, label="Stream", blank="all")  # its name
    kind: str = one_of(*lines.KINDS, label="Kind")
    state: str = one_of(*State, label="State")
    host: str = words(100, label="Host", placeholder="any")
    before: int | None = number()  # only runs with a smaller id: the next page


def run_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(RunFilters, request.GET, data_format)
    if filters.stream:
        streams.of_request(request)
    matching, unknown = lines.matching(asdict(filters) | {"before": None})
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
            "kind": list(lines.KINDS.items()),
            "suite": sorted({*SUITES, filters.suite} - {""}),
            "stream": [stream.name for stream in with_results(streams.listed(request))],
        },
        suggested={"branch": sorted({line.branch for line in shown})},
        clear=reverse("runs") if request.GET else "",
    )
    others = {name: without(request.GET, name, "before") for name in ("stream", "branch")}
    context = {
        "lines": shown,
        "runs_html": _RUNS.html(shown, others, css="runs", data_rows="data-rows"),
        "total": total,
        "next_before": next_before,
        "unknown": unknown,
        "form": form,
        "filters": filters,
        "complaints": complaints,
    }
    return render(request, "runs/runs.html", context)
