"""Lost milliseconds and autotune regret of an arch."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.models import Stream
from hud.pages import data, query_string, streams
from hud.pages.limits import query
from hud.pages.limits.query import LimitsPage
from hud.pages.suite.query import identity


def limits(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.Filters, request.GET, data_format)
    stream = streams.of_request(request)
    page = query.read(filters, stream, everything=bool(data_format))
    if data_format:
        return _data(page, stream, data_format)
    choices = [(name, getattr(page.filters, name), page.words.get(name, [])) for name in query.CHOICES]
    context = {"page": page, "choices": choices, "complaints": complaints}
    return render(request, "limits/limits.html", context)


def _data(page: LimitsPage, stream: Stream, data_format: str) -> HttpResponse:
    ceilings = page.ceilings
    return data.answer(
        data_format,
        "limits",
        [{**kernel.to_row(), "stream": stream.name} for kernel in page.kernels],
        stream=stream.name,
        arch=page.filters.arch,
        ceilings={
            "copy_gbps": ceilings.copy_gbps,
            "read_gbps": ceilings.read_gbps,
            "matmul_tflops": ceilings.matmul_tflops,
        },
        models=[
            {
                **identity(model.experiment),
                "busy_us": model.busy_us,
                "gaps_us": model.gaps_us,
                "ceiling_us": model.floor_us,
                "lost_us": model.lost_us,
                "share_of_ceiling": model.share,
                "covered": model.coverage,
                "run": model.run,
            }
            for model in page.models
        ],
        autotune_regret=[line.to_row() for line in page.regrets],
        without_formula=[
            {"kernel": one.name, "kind": one.kind, "time_us": one.time_us, "experiments": one.experiments}
            for one in page.nameless
        ],
    )
