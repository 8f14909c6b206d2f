"""What changed between two points."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.models import Stream
from hud.pages import data, query_string, streams
from hud.pages.code import query, sides
from hud.pages.code.table import Table
from hud.pages.query_string import words
from hud.points.sides import BadSide
from hud.problems import Problem


@dataclass(frozen=True)
class _Asked:
    """Two points, as `hud.points.sides` reads them, and the slot of the kernel whose code to show."""

    base: str = words(300)
    head: str = words(300)
    kernel: str = words(16)
    q: str = words()  # of the chooser


def code(request: HttpRequest, data_format: str = "") -> HttpResponse:
    """Show the comparison, or without sides those that could be made."""
    asked, complaints = query_string.read(_Asked, request.GET, data_format)
    stream = streams.of_request(request)
    if not (asked.base and asked.head):
        return _chooser(request, stream, data_format, asked.q, complaints)
    try:
        page = query.read(asked.base, asked.head, stream, slot=asked.kernel, with_code=not data_format)
    except BadSide as error:
        if data_format:
            return Problem(404, str(error)).response()
        return _chooser(request, stream, "", "", [str(error)])
    if data_format:
        return data.answer(data_format, "code", page.to_rows(), query.HEADER, **page.to_json())
    context = {"page": page, "table": Table.of(page.attribution), "complaints": complaints}
    return render(request, "code/code.html", context)


def _chooser(
    request: HttpRequest, stream: Stream, data_format: str, text: str, complaints: list[str]
) -> HttpResponse:
    lines = sides.comparable(stream, text)
    if data_format:
        same = {"stream": stream.name}
        return data.answer_table(data_format, "code-points", sides.COMPARABLE, lines, constant=same)
    context = {"lines": lines, "text": text, "complaints": complaints}
    return render(request, "code/chooser.html", context)
