"""One experiment, and its rerun."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from hud.accounts.access import after_login, form_as_it_was
from hud.models import Experiment
from hud.pages import data
from hud.pages.experiment import charts, compilation_charts, query
from hud.pages.experiment.charts import Figure
from hud.pages.experiment.query import ExperimentPage
from hud.pages.forms import ExperimentChoice, RerunForm
from hud.pages.hosts.query import Place, places_for
from hud.pages.suite.query import identity
from hud.runs.matching import ResourceRequest
from hud.runs.requests import InvalidRunRequest, RunOptions, request_rerun, spec_of
from runner.schema.suite import value_rule
from runner.suites import SUITES

_TABLE_ROWS = 50  # newest points, unless ?table=all
_POINTS_OF_SIBLING = 10


@require_safe
def experiment(request: HttpRequest, pk: int, data_format: str = "") -> HttpResponse:
    form = ExperimentChoice(request.GET)
    if data_format and (refusal := data.refusal(form)):
        return refusal
    page = query.read(pk, **form.query_options())
    if page is None:
        return data.missing(data_format, f"no experiment has the id {pk}")
    if data_format:
        return _data(page, data_format)
    rerun_form = _rerun_form(page.experiment, page.places, initial=request.GET.dict())
    complaints = form.complaints()
    wanted = form.kept().get("metric")
    if wanted and not (page.history and page.history.metric.name == wanted):
        complaints.append(f"metric: not measured for this experiment: {wanted!r}")
    rows = query.MAX_POINTS if form.kept().get("table") else _TABLE_ROWS
    return _render(request, page, rerun_form, rows=rows, complaints=complaints)


def _data(page: ExperimentPage, data_format: str) -> HttpResponse:
    histories = [history for history in (page.history, *page.siblings) if history]
    rows = [
        {**identity(history.experiment), **point.to_row()}
        for history in histories
        for point in history.points
    ]
    return data.answer(
        data_format,
        f"experiment-{page.experiment.pk}",
        rows,
        experiment=identity(page.experiment),
        metrics=[value.to_row() for value in page.metrics],
        environments={one.fingerprint: one.facts for one in page.environments},
        **page.compilations.to_json(),
    )


def _render(
    request: HttpRequest,
    page: ExperimentPage,
    form: RerunForm,
    *,
    rows: int = _TABLE_ROWS,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    shown, command, impossible = page.experiment, "", ""
    try:
        command = spec_of(shown, device=shown.device).command()
    except InvalidRunRequest as error:
        impossible = str(error)
    identity_words = [shown.mode, shown.dtype, shown.backend, shown.device]
    context = {
        "page": page,
        "experiment": shown,
        "identity": filter(None, [*identity_words, "dynamic shapes" if shown.dynamic else ""]),
        "form": form,
        "command": command,
        "impossible": impossible,
        "points": page.history.newest_first[:rows] if page.history else [],
        "chart": charts.history(page.history) if page.history else None,
        "samples_chart": _samples_chart(page),
        "compilations_chart": _compilations_chart(page),
        "rule": value_rule(page.experiment.suite, page.history.metric.name) if page.history else "median",
        "siblings": [
            (history, charts.history(history), history.points[: -_POINTS_OF_SIBLING - 1 : -1])
            for history in page.siblings
        ],
        **more,
    }
    return render(request, "experiment/experiment.html", context, status=status)


def _samples_chart(page: ExperimentPage) -> Figure | None:
    """Return the newest point's samples. A value rule holds for one process; several have their median."""
    if page.history is None or page.history.newest is None or not page.samples:
        return None
    metric, alone = page.history.metric, page.history.newest.processes == 1
    rule = value_rule(page.experiment.suite, metric.name) if alone else "median"
    return charts.samples(page.samples, metric, rule)


def _compilations_chart(page: ExperimentPage) -> Figure | None:
    """Return the compilations: those of a kernel by the shown metric, of a model by busy time."""
    found = page.compilations
    if page.history and found.few_kernels and any(mark.value is not None for mark in found.marks):
        return compilation_charts.of_kernel(found.marks, page.history.metric)
    timed = any(mark.busy_us is not None for mark in found.marks)
    return compilation_charts.of_model(found.marks) if timed else None


def _rerun_form(asked: Experiment, places: list[Place], **options: Any) -> RerunForm:
    """Return the form, with a field for each knob of a suite that the runner has."""
    try:
        spec = spec_of(asked, device=asked.device)
    except InvalidRunRequest:
        return RerunForm(places=places, **options)
    knobs, inductor = SUITES[asked.suite].options, SUITES[asked.suite].takes_inductor_options(spec)
    offered: dict[str, Any] = {"knobs": knobs, "inductor": inductor, "own": spec.knobs}
    return RerunForm(places=places, **offered, **options)


@require_POST
@after_login(lambda request, pk: f"{reverse('experiment', args=[pk])}?{form_as_it_was(request)}#rerun")
def rerun(request: HttpRequest, pk: int) -> HttpResponse:
    """Request a rerun. A visitor logs in first and finds the form as it was."""
    asked = get_object_or_404(Experiment, pk=pk)
    form = _rerun_form(asked, places_for(asked), data=request.POST)
    problem = ""
    if form.is_valid() or not form.places:
        try:
            options = _options(form, asked, request.user.get_username())
            run = request_rerun(asked, options, knobs=form.knobs_chosen() if form.places else {})
            return redirect("run", pk=run.pk)
        except InvalidRunRequest as error:
            problem = "" if form.refuse(error) else str(error)
    page = query.read(pk, **ExperimentChoice(request.POST).query_options())
    assert page is not None
    return _render(request, page, form, status=422, problem=problem)


def _options(form: RerunForm, asked: Experiment, who: str) -> RunOptions:
    """Return where and how often; without any place, `request_rerun` raises what is missing."""
    if not form.places:
        return RunOptions(ResourceRequest(asked.device, arch=asked.arch), who)
    place, said = form.place_chosen(), form.cleaned_data
    resources = ResourceRequest(
        place.device,
        place.host,
        place.arch,
        interpreter=said["environment"],
        base_interpreter=said["base_environment"],
    )
    return RunOptions(resources, who, said["repeats"], said.get("new_options", {}))
