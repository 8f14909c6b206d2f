"""One experiment: its charts with their lines and details, its rerun and its notes."""

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.accounts.access import after_login, form_as_it_was
from hud.corrections import notes
from hud.hosts.registration import present_accelerators
from hud.judging.comparison import noise_before
from hud.judging.regressions import known_failures
from hud.models import Annotation, Experiment, KnownFailure, Regression
from hud.pages import data, query_string, streams
from hud.pages.charts import drawing
from hud.pages.charts.choice import Choice
from hud.pages.charts.drawing import SHAPES, Canvas, Legend
from hud.pages.charts.lines import lines_of
from hud.pages.charts.multiples import OF_ENVIRONMENT, OF_RUN, Chart, Key
from hud.pages.experiment import query, tables
from hud.pages.experiment.query import ExperimentPage
from hud.points.read import HEADER, OF_EXPERIMENT, POINT, rows_in_stream
from hud.points.targets import arch_name
from hud.problems import Problem
from hud.runs.branches import other_branch
from hud.runs.forms import RerunForm, uid_of_form
from hud.runs.places import Place, places_for
from hud.runs.requests import request_rerun, spec_of
from hud.tables.formatting import better, signed_percent, unit
from hud.tables.html import NOTHING, badge_html, icon_html, join, json_block, options, span
from hud.tables.table import IDENTITY
from runner.formats.readers.xla import OF_OPERATION
from runner.schema.statistics import median
from runner.schema.suite import BadRequest, suite_of, value_rule


def canvas_of(page: ExperimentPage) -> Canvas:
    """Return the settings of the page's charts: shapes of variants, expected times, and lines."""
    shapes, legend = _shapes_of(page)
    expected = {  # of the choices of each compilation in history
        (mark.run, mark.number): mark.busy_us / mark.same_choice / 1e3
        for mark in page.compilations.marks
        if mark.busy_us and mark.same_choice
    }
    canvas = Canvas(page.charts.slots, page.choice, shapes=shapes, legend=legend, expected=expected)
    canvas.events = lines_of(page.charts, page.notes, canvas)
    return canvas


def _shapes_of(page: ExperimentPage) -> tuple[dict[str, int], list[Legend]]:
    """Return the shape of each variant of a few kernels, the most frequent first. Reruns do not count."""
    found = page.compilations
    if not found.few_kernels:
        return {}, []
    marks = [mark for mark in found.marks if not mark.rerun]
    counts = Counter(mark.variant for mark in marks)
    places = {variant: min(place, SHAPES - 1) for place, (variant, _n) in enumerate(counts.most_common())}
    legend = []
    for place in range(min(len(counts), SHAPES)):
        own = [mark for mark in marks if places[mark.variant] == place]
        several = len({mark.variant for mark in own}) > 1
        text = "other choices" if several else own[0].config or own[0].variant[:7]
        values = [mark.value for mark in own if mark.value is not None]
        legend.append(Legend(place, text, len(own), median(values) if values else None))
    return places, legend


def details_of(page: ExperimentPage, canvas: Canvas) -> dict[str, Any]:
    """Return what the script shows of a chosen point, as JSON. Points and values are lists, and words are
    numbers: with names they would be most of the page."""
    charts = page.charts
    places = {slot.key: place for place, slot in enumerate(charts.slots)}
    known = {mark.run for mark in page.compilations.marks}
    words: dict[str, int] = {}  # verdicts and codes, by their place
    return {
        "experiment": page.experiment.pk,
        "stream": page.stream.name,
        "points": [
            [
                slot.run,
                round(x / 10, 3),
                slot.time,
                slot.commit,
                other_branch(slot.branch),
                slot.host,
                slot.changed[:6],
                slot.run in known,
                slot.rerun,
            ]
            for slot, x in zip(charts.slots, canvas.xs, strict=True)
        ],
        "rows": [
            {
                "title": row.metric.title,
                "unit": row.metric.unit if row.metric.unit in ("B", "ratio") else unit(row.metric),
                "digits": row.metric.precision,
                "better": better(row.metric),
                "values": _values_of(row, places, words),
            }
            for row in charts.rows
        ],
        "words": list(words),
    }


def _values_of(row: Chart, places: Mapping[Key, int], words: dict[str, int]) -> list[list[Any]]:
    """Return of each point place, value, compilations, word, level, noise and change; of several compilations
    both extremes too. They have 7 digits of the largest."""
    largest = max((abs(spot.value) for spot in row.spots.values() if spot.value), default=1.0)
    digits = 6 - math.floor(math.log10(largest))
    found = []
    for key, spot in row.spots.items():
        word = words.setdefault(spot.word, len(words))
        numbers = [
            places[key],
            spot.value and round(spot.value, digits),
            len(spot.compilations),
            word,
            spot.level and round(spot.level, digits),
            spot.noise and round(spot.noise, 5),
            spot.change and round(spot.change, 5),
        ]
        if len(spot.compilations) > 1:
            ends = [value for _number, value in spot.compilations]
            numbers += round(min(ends), digits), round(max(ends), digits)
        found.append(numbers)
    return found


def experiment(request: HttpRequest, pk: int, data_format: str = "") -> HttpResponse:
    choice, complaints = query_string.read(Choice, request.GET, data_format)
    stream = streams.of_experiment(request, pk)
    page = query.read(pk, stream, choice, as_data=bool(data_format))
    if data_format:
        return _data(page, data_format)
    form_of_rerun = rerun_form(
        page.experiment, page.places, initial=request.GET.dict(), whole=choice.options == "all"
    )
    wanted = choice.metric
    if wanted and not (page.metric and page.metric.name == wanted):
        complaints.append(f"metric: not measured for this experiment: {wanted!r}")
    return _render(request, page, form_of_rerun, complaints=complaints)


def _data(page: ExperimentPage, data_format: str) -> HttpResponse:
    points = [point for each in page.histories for point in each]
    rows = rows_in_stream(points, page.stream)
    for row, point in zip(rows, points, strict=True):
        row.update(OF_RUN.row(point.run) | OF_ENVIRONMENT.row(point.environment))
    return data.answer(
        data_format,
        f"experiment-{page.experiment.pk}",
        rows,
        (*HEADER, *OF_RUN.names, *OF_ENVIRONMENT.names),
        experiment=IDENTITY.row(page.experiment),
        stream=page.stream.name,
        metrics=POINT.rows(page.metrics),
        backends=OF_EXPERIMENT.rows(cell for _one, cells in page.backends for cell in cells if cell),
        annotations=notes.COLUMNS.rows(page.notes),
        environments={environment.fingerprint: environment.facts for environment in page.environments},
        **page.compilations.to_json(),
    )


def _render(
    request: HttpRequest, page: ExperimentPage, form: RerunForm, *, status: int = 200, **more: Any
) -> HttpResponse:
    streams.name_in_links(request)
    newest, canvas = page.newest, canvas_of(page)
    regression = page.charts.active
    choices = [one.value for one in canvas.legend if one.value is not None]  # the autotuner's
    rule = value_rule(page.experiment.suite, page.metric.name) if page.metric else "median"
    own_rule = rule if newest and newest.processes == 1 else "median"
    context = {
        "page": page,
        "experiment": page.experiment,
        "regression": regression,
        "choices": (min(choices), max(choices)) if len(choices) > 1 else None,
        "choice": page.choice,
        "canvas": canvas,
        "charts": [
            (row, drawing.chart(row, canvas, tall=not place), _badge(row))
            for place, row in enumerate(page.charts.rows)
        ],
        "strips": [(row, drawing.strip(row, canvas)) for row in page.charts.strips],
        "hosts": drawing.hosts(canvas),
        "heads": drawing.heads(canvas) if canvas.events else "",
        "axis": drawing.axis(canvas),
        "details": json_block(orjson.dumps(details_of(page, canvas)).decode(), "chart-details"),
        "arch_name": arch_name(page.experiment.arch or page.experiment.device),
        "form": form,
        "command": page.spec.command() if page.spec else "",
        "file_command": page.spec.command("reproduce")
        if page.spec and suite_of(page.spec.suite).compiles
        else "",
        "older": f"{page.older[0].timestamp() * 1e6:.0f}_{page.older[1]}" if page.older else "",
        "samples": drawing.samples(page.origin.samples, page.metric, own_rule)
        if page.metric and len(page.origin.samples) > 1
        else "",
        "rule": rule,
        "backends": tables.backends(page, query_string.without(request.GET, "overlay")),
        "devices": tables.DEVICES.html(page.devices, page),
        "points": tables.POINTS.html(
            page.points, page, css="points", scroll="scroll tall", frame=tables.frame_of_point
        ),
        "metrics": tables.METRICS.html(
            [point for point in page.metrics if not OF_OPERATION.fullmatch(point.metric.name)],
            page,
            scroll="scroll tall",
            frame=tables.framed(lambda point: point.metric == page.metric),
        ),
        "operations": tables.operations(page),
        "metric_options": options(
            ((point.metric.name, point.metric.title) for point in page.metrics),
            page.metric.name if page.metric else "",
        ),
        "chosen_kernels": tables.choice_rows(page.compilations),
        "changed": tables.changed_bars(page.compilations.table) if page.compilations.table else "",
        **more,
    }
    return render(request, "experiment/experiment.html", context, status=status)


def _badge(row: Chart) -> SafeString:
    """Show what the judge says of a chart's newest point."""
    verdict, change = row.point.verdict, row.point.change
    if row.regression and row.regression.kind == Regression.Kind.DRIFT:
        return span(join(icon_html("drift"), "drift", signed_percent(row.regression.change)), "badge doubt")
    if not verdict:
        return NOTHING
    has_change = change is not None and verdict in {"improved", "regressed", "inconclusive"}
    return badge_html(verdict, signed_percent(change) if has_change else verdict)


def _address(request: HttpRequest, pk: int) -> str:
    """Return the address of the page from which a form came."""
    return f"{reverse('experiment', args=[pk])}?{request.GET.urlencode()}"


def rerun_form(asked: Experiment, places: list[Place], **about: Any) -> RerunForm:
    """Return the form of a rerun, with the options of its task where it has one."""
    spec = None
    with suppress(BadRequest):
        spec = spec_of(asked, device=asked.device)
    return RerunForm(places=places, spec=spec, noise=partial(noise_before, asked), **about)


@after_login(lambda request, pk: f"{_address(request, pk)}&{form_as_it_was(request)}#rerun")
def request_run(request: HttpRequest, pk: int) -> HttpResponse:
    """Request a rerun. A visitor logs in first and finds the form as it was."""
    asked, stream = get_object_or_404(Experiment, pk=pk), streams.of_experiment(request, pk)
    form = rerun_form(asked, places_for(asked, present_accelerators()), data=request.POST)
    problem = ""
    if form.is_valid():  # without any place it is not, and the page says why there is none
        try:
            options = replace(form.options(request.user.get_username(), stream), uid=uid_of_form(request))
            run = request_rerun(asked, options, knobs=form.knobs_chosen())
            return redirect("run", pk=run.pk)
        except BadRequest as error:
            problem = "" if form.refuse(error) else str(error)
    choice, _complaints = query_string.read(Choice, request.POST)
    page = query.read(pk, stream, choice)
    return _render(request, page, form, status=422, problem=problem)


@after_login(lambda request, pk: f"{_address(request, pk)}&{form_as_it_was(request)}#notes")
def add_note(request: HttpRequest, pk: int) -> HttpResponse:
    """Store a note of this experiment, of its suite, or of everything."""
    asked, scope = get_object_or_404(Experiment, pk=pk), request.POST.get("scope")
    given = {**request.POST.dict(), "suite": asked.suite if scope == "suite" else ""}
    form = notes.NoteForm(given, instance=Annotation(experiment=asked if scope == "experiment" else None))
    if scope not in ("experiment", "suite", "all"):
        form.add_error(None, "The scope is experiment, suite or all.")
    if form.is_valid():
        form.store(request.user.get_username())
    else:
        texts = [f"{name}: {' '.join(map(str, errors))}" for name, errors in form.errors.items()]
        messages.error(request, f"The note is not stored. {' '.join(texts)}")
    return redirect(f"{_address(request, pk)}#notes")


@after_login(lambda request, pk, **_note: f"{_address(request, pk)}#notes")
def delete_note(request: HttpRequest, pk: int, note: int) -> HttpResponse:
    """Delete a note, from the page of an experiment that shows it."""
    notes.delete(get_object_or_404(Annotation, pk=note), who=request.user.get_username())
    return redirect(f"{_address(request, pk)}#notes")


def mark_failure(request: HttpRequest, pk: int) -> HttpResponse:
    """Mark the failures of an experiment in the page's stream as known."""
    stream, who = streams.of_experiment(request, pk), request.user.get_username()
    asked, reason = get_object_or_404(Experiment, pk=pk), request.POST.get("reason", "")
    try:
        known_failures.mark(stream=stream, experiment=asked, reason=reason, who=who)
    except Problem as error:
        messages.error(request, f"The failure is not marked. reason: {error}.")
    return redirect(_address(request, pk))


def forget_failure(request: HttpRequest, pk: int) -> HttpResponse:
    """Make the failures of an experiment in the page's stream news again."""
    stream = streams.of_experiment(request, pk)
    failure = get_object_or_404(KnownFailure, experiment=pk, stream=stream)
    known_failures.forget(failure, who=request.user.get_username())
    return redirect(_address(request, pk))
