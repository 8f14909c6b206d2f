"""The list of suites, and the table of one."""

from __future__ import annotations

from dataclasses import asdict

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from hud.pages import data
from hud.pages.forms import SuiteFilters
from hud.pages.suite import matrix, query


@require_safe
def suite_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    lines = query.read_all()
    if data_format:
        return data.answer(data_format, "suites", [asdict(line) for line in lines])
    return render(request, "suite/suites.html", {"lines": lines})


@require_safe
def suite(request: HttpRequest, name: str, data_format: str = "") -> HttpResponse:
    form = SuiteFilters(request.GET)
    if data_format and (refusal := data.refusal(form)):
        return refusal
    filters = form.filters()
    page = query.read(name, filters)
    if page is None:
        return data.missing(data_format, f"no suite is called {name!r}")
    if data_format:
        rows = [line for row in page.rows for line in row.to_rows()]
        return data.answer(
            data_format, f"suite-{name}", rows, suite=name, total=page.total, page=filters.page
        )
    context = {
        "page": page,
        "filters": filters,
        "complaints": form.complaints(),
        "choices": _choices(page, filters),
        "varying": page.varying,
        "constant": page.constant,
        "last_page": max(1, -(-page.total // query.PAGE_ROWS)),
        "matrix": matrix.read(name),
    }
    return render(request, "suite/suite.html", context)


def _choices(page: query.SuitePage, filters: query.Filters) -> list[tuple[str, str, list[str]]]:
    """For each filter its name, its value and what can be chosen; an unknown value stays to be seen."""
    lines = []
    for name in query.CHOICES:
        value: str = getattr(filters, name)
        offered = page.choices[name]
        lines.append((name, value, offered if not value or value in offered else [*offered, value]))
    return lines
