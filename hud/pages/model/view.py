"""The page of a model: which of its backends, arches, modes and types moved, and where it is worst."""

from dataclasses import dataclass
from difflib import get_close_matches

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from hud.models import Experiment, Stream
from hud.pages import data, query_string, streams
from hud.pages.model.query import TONES, ModelPage, read
from hud.points.expectations import FAILING
from hud.points.read import HEADER, rows_in_stream
from hud.problems import Problem
from hud.sql import fetch_models


@dataclass(frozen=True)
class ModelFilters:
    metric: str = query_string.words()  # the key of a column, or one of its metrics


def model(request: HttpRequest, suite: str, case: str, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(ModelFilters, request.GET, data_format)
    named = 'WHERE suite = %(suite)s AND "case" = %(case)s ORDER BY id'
    experiments = fetch_models(Experiment, named, {"suite": suite, "case": case})
    if not experiments:
        return _missing(request, suite, case, data_format)
    stream = streams.of_experiment(request, *(experiment.pk for experiment in experiments))
    page = read(stream, experiments, filters.metric)
    if filters.metric and not (page.chosen and filters.metric in (page.chosen.key, *page.chosen.metrics)):
        complaints.append(f"metric: {filters.metric!r} was not measured")
    if data_format and complaints:
        raise Problem(400, complaints[0])
    if data_format:
        return _as_data(page, stream, suite, case, data_format)
    known = [bool(point.known_failure) for _one, point in page.shown if point.status_code in FAILING]
    context = {
        "suite": suite,
        "case": case,
        "page": page,
        "moved": [(tone, page.with_tone(tone)) for tone in TONES.values()],
        "news": known.count(False),
        "known": known.count(True),
        "tabs": [
            (column, sum(page.tone(point) == "worse" for _one, point in page.cells(column)))
            for column in page.columns
        ],
        "complaints": complaints,
    }
    streams.name_in_links(request)
    return render(request, "model/model.html", context)


def _missing(request: HttpRequest, suite: str, case: str, data_format: str) -> HttpResponse:
    """Answer that there is no such model, and which of the suite have a name like it."""
    if data_format:
        raise Http404(f"no case of {suite!r} is called {case!r}")
    streams.of_request(request)
    cases = list(Experiment.objects.filter(suite=suite).values_list("case", flat=True).distinct())
    context = {"suite": suite, "case": case, "cases": cases, "alike": get_close_matches(case, cases, 6, 0.5)}
    return render(request, "model/missing.html", context, status=404)


def _as_data(page: ModelPage, stream: Stream, suite: str, case: str, data_format: str) -> HttpResponse:
    """Return the newest points of all columns, those of the chosen one with their trend; in JSON also where
    each column is worst."""
    points = [point for column in page.columns for _one, point in page.cells(column)]
    trends = {point.series_id: row.trend for row, point in page.shown}
    rows = zip(rows_in_stream(points, stream), points, strict=True)
    items = [{**row, "trend": trends.get(point.series_id)} for row, point in rows]
    worst = [
        {"metric": point.metric.name, "value": point.value, "experiment": point.experiment.pk}
        for _column, (_one, point), _distances in page.worst()
    ]
    about = {"suite": suite, "case": case, "stream": stream.name, "worst": worst}
    return data.answer(data_format, f"model-{suite}-{case}", items, (*HEADER, "trend"), **about)
