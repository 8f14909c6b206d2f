"""Lost milliseconds and autotune regret of an arch."""

from __future__ import annotations

from dataclasses import asdict

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.pages import data, query_string, streams
from hud.pages.limits import query
from hud.pages.limits.lines import KERNEL, MODEL, NAMELESS, REGRET


def limits(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.Filters, request.GET, data_format)
    stream = streams.of_request(request)
    page = query.read(filters, stream, everything=bool(data_format))
    if data_format:
        return data.answer(
            data_format,
            "limits",
            [{**KERNEL.row(kernel), "stream": stream.name} for kernel in page.kernels],
            (*KERNEL.names, "stream"),
            stream=stream.name,
            arch=page.filters.arch,
            ceilings=asdict(page.ceilings),
            models=MODEL.rows(page.models),
            autotune_regret=REGRET.rows(page.regrets),
            without_formula=[dict(zip(NAMELESS, one, strict=True)) for one in page.nameless],
        )
    choices = [(name, getattr(page.filters, name), page.words.get(name, [])) for name in query.CHOICES]
    context = {"page": page, "choices": choices, "complaints": complaints}
    return render(request, "limits/limits.html", context)
