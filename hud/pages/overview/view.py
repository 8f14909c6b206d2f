"""The overview."""

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.pages import data, query_string, streams
from hud.pages.compilers.query import WINDOWS, Filters
from hud.pages.compilers.view import table_html
from hud.pages.overview import look, query
from hud.pages.runs import query as runs
from hud.problems import Problem


def overview(request: HttpRequest, data_format: str = "") -> HttpResponse:
    stream = streams.of_request(request)
    filters, complaints = query_string.read(Filters, request.GET, data_format)
    which = request.GET.get("look", "")
    user = request.user if isinstance(request.user, User) else None
    page = query.read(filters, stream, which, user, with_regressed=bool(data_format))
    comparison = page.comparison
    if data_format and comparison.complaints:
        return Problem(400, "; ".join(comparison.complaints)).response()
    if data_format:
        return data.answer(
            data_format,
            "overview",
            page.to_rows(),
            query.HEADER,
            **comparison.to_json(),
            so_far=page.so_far,
            results=page.results,
            unjudged=page.unjudged,
            table=comparison.to_rows(),
            runs=runs.COLUMNS.rows(page.runs),
        )
    shown = page.looks[: None if request.GET.get("rows") == "all" else query.ROWS]
    look.complete(shown)
    context = {
        "page": page,
        "comparison": comparison,
        "table": comparison.table,
        "backends": query.BACKENDS,
        "shown_looks": shown,
        "filters": comparison.filters,
        "counts_of_page": comparison.counts,
        "query_of_counts": comparison.of_sides,
        "table_html": table_html(comparison, backends=query.BACKENDS),
        "windows": WINDOWS,
        "look": which if which in {"new", "mine"} else "",
        "complaints": complaints + comparison.complaints,
    }
    response = render(request, "overview/overview.html", context)
    streams.keep_choice(request, response)
    return response
