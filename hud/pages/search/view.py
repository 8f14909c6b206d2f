"""Search over everything that has a page."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.pages import data, query_string, streams
from hud.pages.query_string import words
from hud.pages.search import query


@dataclass(frozen=True)
class _Asked:
    q: str = words()


def search(request: HttpRequest, data_format: str = "") -> HttpResponse:
    asked, complaints = query_string.read(_Asked, request.GET, data_format)
    text = asked.q
    kinds = query.search(streams.of_request(request), text)
    if data_format:
        rows = [query.COLUMNS.row(one) for kind in kinds for one in kind.found]
        totals = {kind.kind: kind.total for kind in kinds}
        return data.answer(data_format, "search", rows, query.COLUMNS.names, q=text, totals=totals)
    streams.name_in_links(request)
    context = {"text": text, "kinds": kinds, "complaints": complaints}
    return render(request, "search/search.html", context)
