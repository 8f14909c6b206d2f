"""What changed between two points."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from hud.models import Stream
from hud.pages import data, streams
from hud.pages.code import chooser, query
from hud.pages.code.table import Table
from hud.pages.forms import CodeSides
from hud.points.sides import BadSide
from hud.problems import Problem


@require_safe
def code(request: HttpRequest, data_format: str = "") -> HttpResponse:
    """Show the comparison, or without sides those that could be made."""
    form = CodeSides(request.GET)
    if data_format and (refusal := data.refusal(form)):
        return refusal
    stream = streams.of_request(request)
    kept = form.kept()
    sides = kept.get("base", ""), kept.get("head", "")
    if not all(sides):
        return _chooser(request, stream, data_format, kept.get("q", ""), form.complaints())
    try:
        page = query.read(*sides, stream, slot=kept.get("kernel", ""), with_code=not data_format)
    except BadSide as error:
        if data_format:
            return Problem(404, str(error)).response()
        return _chooser(request, stream, "", "", [str(error)])
    if data_format:
        return data.answer(data_format, "code", page.to_rows(), **page.to_json())
    context = {"page": page, "table": Table.of(page.attribution), "complaints": form.complaints()}
    return render(request, "code/code.html", context)


def _chooser(
    request: HttpRequest, stream: Stream, data_format: str, text: str, complaints: list[str]
) -> HttpResponse:
    lines = chooser.read(stream, text)
    if data_format:
        rows = [{**line.to_row(), "stream": stream.name} for line in lines]
        return data.answer(data_format, "code-points", rows)
    context = {"lines": lines, "text": text, "complaints": complaints}
    return render(request, "code/chooser.html", context)
