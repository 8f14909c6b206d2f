"""The overview."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from hud.pages import data
from hud.pages.overview import query


@require_safe
def overview(request: HttpRequest, data_format: str = "") -> HttpResponse:
    page = query.read()
    if data_format:
        return data.answer(
            data_format, "overview", page.to_rows(), runs=[line.to_row() for line in page.runs]
        )
    return render(request, "overview/overview.html", {"page": page, "rows": query.ROWS})
