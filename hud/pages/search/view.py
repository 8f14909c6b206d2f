"""Search over everything that has a page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from hud.pages import data, streams
from hud.pages.forms import SearchWords
from hud.pages.search import query


@require_safe
def search(request: HttpRequest, data_format: str = "") -> HttpResponse:
    form = SearchWords(request.GET)
    if data_format and (refusal := data.refusal(form)):
        return refusal
    text = form.kept().get("q", "")
    kinds = query.search(streams.of_request(request), text)
    if data_format:
        rows = [one.to_row() for kind in kinds for one in kind.found]
        return data.answer(
            data_format, "search", rows, q=text, totals={kind.kind: kind.total for kind in kinds}
        )
    streams.name_in_links(request)
    context = {"text": text, "kinds": kinds, "complaints": form.complaints()}
    return render(request, "search/search.html", context)
