"""Lost milliseconds and autotune regret of an arch."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.pages import data, query_string, streams
from hud.pages.attributes import attributes
from hud.pages.limits import query


def limits(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.Filters, request.GET, data_format)
    stream = streams.of_request(request)
    page = query.read(filters, stream, everything=bool(data_format))
    if data_format:
        return data.answer(
            data_format,
            "limits",
            [{**kernel.to_row(), "stream": stream.name} for kernel in page.kernels],
            stream=stream.name,
            arch=page.filters.arch,
            ceilings=attributes(page.ceilings, "copy_gbps read_gbps matmul_tflops"),
            models=[model.to_row() for model in page.models],
            autotune_regret=[line.to_row() for line in page.regrets],
            without_formula=[
                {"kernel": one.name, **attributes(one, "kind time_us experiments")} for one in page.nameless
            ],
        )
    choices = [(name, getattr(page.filters, name), page.words.get(name, [])) for name in query.CHOICES]
    context = {"page": page, "choices": choices, "complaints": complaints}
    return render(request, "limits/limits.html", context)
