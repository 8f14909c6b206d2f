"""The compilers: every backend on every suite, two sides side by side, down to the cases."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.pages import backends, backends_table, data, query_string, streams
from hud.pages.compilers import cases
from hud.problems import Problem


def compilers(request: HttpRequest, data_format: str = "") -> HttpResponse:
    stream = streams.of_request(request)
    filters, complaints = query_string.read(backends.BackendFilters, request.GET, data_format)
    page = backends.read(filters, stream)
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
        header = backends_table.DATA.names
        return data.answer(data_format, "compilers", page.to_rows(), header, **page.to_json(), cases=rows)
    context = {
        "page": page,
        "table": page.table,
        "filters": filters,
        "table_html": backends.table_html(page, chosen=chosen.entry.key if chosen else ""),
        "free": True,
        "query_of_counts": page.of_sides,
        "windows": backends.WINDOWS,
        "chosen": chosen,
        "case_rows": cases.rows_html(chosen, f"stream={stream.name}") if chosen else "",
        "reach_ends": (-chosen.reach, chosen.reach) if chosen else (),
        "dates": cases.dates(chosen.nights) if chosen else [],
        "marks": cases.MARKS,
        "sorts": backends.SORTS,
        "complaints": complaints + page.complaints,
    }
    return render(request, "compilers/compilers.html", context)
