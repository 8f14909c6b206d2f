"""The list of runs, and one run with its log and artifacts."""

from dataclasses import asdict, dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from hud.accounts.access import scopes_of
from hud.corrections.deletion import may_delete
from hud.models import Point, Run, Series, State, Upload
from hud.pages import data, query_string, streams
from hud.pages.query_string import MAX_ID, number
from hud.pages.run import log as log_part
from hud.pages.run import pairs, query
from hud.pages.run.log import LogView
from hud.pages.run.query import RunPage
from hud.pages.run.results import ResultFilters
from hud.pages.run.table import RESULTS
from hud.pages.runs import query as list_query
from hud.points.streams import with_results
from hud.runs import tasks
from hud.runs.requests import request_explanation
from hud.tables.formatting import plain
from hud.tables.html import NOTHING, csrf_field
from hud.tables.table import Order
from runner.schema.draws import LEAST_DRAWS
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import BadRequest
from runner.suites import SUITES

SHOWN_POINTS = 50  # of the results on a page
JSON_POINTS = 200  # in one answer; `next` is the number of the next page
_ALL_POINTS = 20_000  # in a CSV


@dataclass(frozen=True)
class LogPosition:
    """A place in the log of a run's task."""

    task: int | None = number(least=0)
    line: int | None = number()  # that the page begins before


class ExplainForm(forms.Form):
    """A failed result of a run."""

    series = forms.IntegerField(min_value=1, max_value=MAX_ID)


def run_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(list_query.RunFilters, request.GET, data_format)
    if filters.stream:
        streams.of_request(request)
    page = list_query.read(filters)
    if data_format:
        about: dict[str, Any] = {"next": page.next_before, "total": page.total}
        return data.answer_table(data_format, "runs", list_query.COLUMNS, page.lines, **about)
    form = query_string.filter_form(
        filters,
        offered={
            "state": [(state, plain(state)) for state in State],
            "kind": list(list_query.KINDS.items()),
            "suite": sorted({*SUITES, filters.suite} - {""}),
            "stream": [stream.name for stream in with_results()],
        },
        suggested={"branch": sorted({line.branch for line in page.lines})},
        clear=reverse("runs") if request.GET else "",
    )
    context = {"page": page, "form": form, "filters": filters, "complaints": complaints}
    return render(request, "runs/runs.html", context)


def run(request: HttpRequest, pk: int, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(ResultFilters, request.GET, data_format)
    size = {"json": JSON_POINTS, "csv": _ALL_POINTS}.get(data_format, SHOWN_POINTS)
    page = query.read(pk, filters, size)
    if page is None:
        return data.missing(data_format, f"no run has the id {pk}")
    streams.enter(request, page.run.stream)
    if data_format:
        return _data(request, page, data_format)
    place, _complaints = query_string.read(LogPosition, request.GET)
    context = {**_context(request, page), "log": _log(page, place.task, place.line)}
    return render(request, "run/run.html", {**context, "complaints": complaints})


def _data(request: HttpRequest, page: RunPage, data_format: str) -> HttpResponse:
    name = f"run-{page.run.pk}"
    compared = pairs.METRIC.rows(page.pairs)
    if data_format == "csv":
        if request.GET.get("table") == "pairs":
            return data.answer(data_format, f"{name}-pairs", compared, pairs.METRIC.names)
        return data.answer(data_format, name, page.to_rows(), query.HEADER)
    results = page.results
    line = list_query.RunLine(page.run, page.progress.done, page.progress.total)
    return data.answer(
        data_format,
        name,
        page.to_rows(),
        run=list_query.COLUMNS.row(line),
        pairs=compared,
        total=results.total,
        next=results.next_page,
        blind=page.blind,
        counts={kind: count.points for kind, count in results.counts.items()},
        waiting=page.waiting and asdict(page.waiting),
        kernels=pairs.KERNELS.rows(page.kernels),
        artifacts=query.ARTIFACT.rows(page.artifacts),
    )


def live(request: HttpRequest, pk: int) -> HttpResponse:
    """Render the parts of the page that change while it runs."""
    filters, _complaints = query_string.read(ResultFilters, request.GET)
    page = query.read(pk, filters, SHOWN_POINTS)
    if page is None:
        return data.missing("", f"no run has the id {pk}")
    streams.enter(request, page.run.stream)
    response = render(request, "run/live.html", _context(request, page))
    response["Cache-Control"] = "no-store"
    if not page.changes:
        response["X-Poll"] = "stop"
    return response


def _context(request: HttpRequest, page: RunPage) -> dict[str, Any]:
    """Return the page, its first error, and what of it the visitor may delete."""
    scopes, results = scopes_of(request), page.results
    page.csrf = csrf_field(request) if "run" in scopes else NOTHING
    order = Order(results.filters.sort, query_string.without(request.GET, "sort", "page"), "#results")

    def may(uploads: list[Upload]) -> bool:
        return "upload" in scopes and may_delete(uploads, scopes=scopes, owner_id=request.user.pk)

    return {
        "page": page,
        "results_table": RESULTS.html(results.rows, page, order=order, css="results", data_rows="data-rows"),
        "least_pairs": LEAST_PAIRS,
        "least_draws": 2 * LEAST_DRAWS,
        "error": log_part.first_error(page.failed.task) if page.failed else None,
        "deletable": not page.active and may(page.uploads),
        "deletable_uploads": {upload.pk for upload in page.uploads if may([upload])},
    }


def _log(page: RunPage, position: int | None, line: int | None) -> LogView | None:
    """Return the log of the chosen task; else of the one that runs, failed first or was the last."""
    chosen = next((one for one in page.tasks if one.task.position == position), None)
    shown = chosen or (page.failed if not page.active else None) or page.current
    return log_part.read(shown.task, pinned=chosen is not None, line=line) if shown else None


def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    asked = get_object_or_404(Run, pk=pk)
    tasks.cancel(run=asked, who=request.user.get_username())
    messages.success(request, f"Cancelling run {pk}.")
    return redirect("run", pk=pk)


def explain(request: HttpRequest, pk: int) -> HttpResponse:
    """Request a run that finds the part of the compiler at fault for a failed result."""
    failed = get_object_or_404(Run, pk=pk)
    form = ExplainForm(request.POST)
    if not form.is_valid():
        return HttpResponse(status=400)
    of_run = Point.objects.filter(run=failed).values("series_id")
    series = get_object_or_404(
        Series.objects.select_related("experiment", "metric").filter(pk__in=of_run),
        pk=form.cleaned_data["series"],
    )
    try:
        asked = request_explanation(failed, series, request.user.get_username())
    except BadRequest as error:
        messages.error(request, str(error))
        return redirect("run", pk=pk)
    return redirect("run", pk=asked.pk)
