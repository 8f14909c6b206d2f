"""The first page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from hud.queries import overview as query
from hud.views import twins


@require_safe
def overview(request: HttpRequest, twin: str = "") -> HttpResponse:
    page = query.read()
    if twin:
        return twins.answer(twin, "overview", page.to_rows(), runs=[line.to_row() for line in page.runs])
    return render(request, "overview.html", {"page": page, "rows": query.ROWS})
