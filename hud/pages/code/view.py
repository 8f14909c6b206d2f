"""What changed between two points, and the points to choose from."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.judging.compare.kernels import KERNELS, read
from hud.pages import data, query_string, streams
from hud.pages.code import chooser
from hud.pages.query_string import words
from hud.points.sides import BadSide
from hud.problems import Problem
from hud.tables.kernels import KernelTable


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
    stream, page = streams.of_request(request), None
    if asked.base and asked.head:
        try:
            page = read(asked.base, asked.head, stream, slot=asked.kernel, with_code=not data_format)
        except BadSide as error:
            if data_format:
                return Problem(404, str(error)).response()
            complaints = [str(error)]
    if page is None:
        lines = chooser.comparable(stream, asked.q)
        if data_format:
            same = {"stream": stream.name}
            return data.answer_table(data_format, "code-points", chooser.COMPARABLE, lines, constant=same)
        offer = {"lines": lines, "text": asked.q, "complaints": complaints}
        return render(request, "code/chooser.html", offer)
    if data_format:
        return data.answer(data_format, "code", page.to_rows(), KERNELS.names, **page.to_json())
    context = {"page": page, "table": KernelTable.of(page.attribution), "complaints": complaints}
    return render(request, "code/code.html", context)
