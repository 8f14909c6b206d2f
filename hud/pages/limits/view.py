"""Lost milliseconds and autotune regret of an arch."""

from dataclasses import asdict

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from hud.pages import data, query_string, streams
from hud.pages.limits import query
from hud.pages.limits.tables import EXPERIMENTS, KERNELS, NAMELESS, REGRETS

_NO_KERNELS = "No kernel has bytes or FLOPs and a measured ceiling."
_NO_REGRETS = "Not known yet: an experiment needs 10 compilations."


def limits(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.Filters, request.GET, data_format)
    stream = streams.of_request(request)
    page = query.read(filters, stream, everything=bool(data_format))
    if data_format:
        return data.answer_table(
            data_format,
            "limits",
            KERNELS,
            page.kernels,
            constant={"stream": stream.name},
            stream=stream.name,
            arch=page.filters.arch,
            ceilings=asdict(page.ceilings),
            models=EXPERIMENTS.rows(page.models),
            autotune_regret=REGRETS.rows(page.regrets),
            without_formula=NAMELESS.rows(page.nameless),
        )
    clear = streams.link(reverse("limits"))
    context = {
        "page": page,
        "form": query_string.filter_form(
            page.filters,
            offered={"arch": [(arch, arch or "unknown") for arch, *_about in page.arches], **page.words},
            hidden={"stream": stream.name},
            clear=clear,
            button="Show",
        ),
        "kernels": KERNELS.html(page.kernels, page, css="attribution", empty=_NO_KERNELS),
        "regrets": REGRETS.html(page.regrets, page, empty=_NO_REGRETS),
        "experiments": EXPERIMENTS.html(page.models, page, css="attribution", scroll="scroll tall"),
        "nameless": NAMELESS.html(page.nameless, page, scroll="scroll tall"),
        "none": query_string.none_matches(clear, "No experiment"),
        "complaints": complaints,
    }
    return render(request, "limits/limits.html", context)
