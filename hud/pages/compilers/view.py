"""The compilers: every backend on every suite, two sides side by side, down to the cases."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from hud.pages import data, query_string, streams
from hud.pages.compilers import cases, query, table
from hud.problems import Problem

_MOST_KEPT = 20  # ways to show one table


def table_html(page: query.Comparison, *, chosen: str = "", backends: int | None = None) -> SafeString:
    """Return the table, or the first rows of it with lines of nights. It is kept with the table, as its
    hundreds of cells cost more than the rest of a page."""
    shown, kept_as = page.table, (page.query, chosen, backends)
    if not shown or not shown.suites:
        return SafeString("")
    if kept_as not in shown.html:
        if len(shown.html) >= _MOST_KEPT:
            shown.html.clear()
        formulas = f"formulas={page.filters.formulas}&" if page.filters.formulas else ""
        context = {
            "table": shown,
            "rows": shown.rows[:backends],
            "filters": page.filters,
            "chosen": chosen,
            "lines": backends is not None,
            "query": page.query + formulas,
            "in_stream": f"stream={page.stream.name}",
        }
        shown.html[kept_as] = render_to_string("compilers/table.html", context)
    return mark_safe(shown.html[kept_as])  # noqa: S308 - a template's  # nosec B308, B703


def compilers(request: HttpRequest, data_format: str = "") -> HttpResponse:
    stream = streams.of_request(request)
    filters, complaints = query_string.read(query.Filters, request.GET, data_format)
    page = query.read(filters, stream)
    filters = page.filters
    suite, _slash, backend = filters.cell.partition("/")
    chosen = cases.read(page, (suite, backend)) if filters.cell else None
    if filters.cell and chosen is None:
        page.complaints.append(f"cell: nothing was measured of {filters.cell!r}")
    if page.table and page.table.entries and chosen is None:
        chosen = cases.read(page, page.table.most_telling)
    if data_format and page.complaints:
        return Problem(400, "; ".join(page.complaints)).response()
    if data_format:
        rows = cases.COLUMNS.rows(chosen.cases) if chosen else []
        header = table.DATA.names
        return data.answer(data_format, "compilers", page.to_rows(), header, **page.to_json(), cases=rows)
    context = {
        "page": page,
        "table": page.table,
        "filters": filters,
        "table_html": table_html(page, chosen=chosen.entry.key if chosen else ""),
        "free": True,
        "counts_of_page": page.counts,
        "query_of_counts": page.of_sides,
        "windows": query.WINDOWS,
        "chosen": chosen,
        "case_rows": cases.rows_html(chosen, f"stream={stream.name}") if chosen else "",
        "reach_ends": (-chosen.reach, chosen.reach) if chosen else (),
        "dates": cases.dates_html(chosen.nights) if chosen else "",
        "marks": cases.MARKS,
        "sorts": query.SORTS,
        "complaints": complaints + page.complaints,
    }
    return render(request, "compilers/compilers.html", context)
