"""One experiment, its rerun, and the notes beside its charts."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from hud.accounts.access import after_login, form_as_it_was
from hud.hosts.registration import present_accelerators
from hud.judging.comparison import noise_before
from hud.judging.regressions import known_failures
from hud.judging.regressions.states import RegressionState, possible
from hud.models import Annotation, Experiment, KnownFailure, Stream
from hud.pages import data, query_string, streams
from hud.pages.experiment import drawing, notes, query, state
from hud.pages.experiment.choice import Choice
from hud.pages.experiment.history import ORIGIN
from hud.pages.experiment.query import ExperimentPage, TableRow
from hud.pages.hosts.query import Place, places_for
from hud.pages.rerun_form import RerunForm
from hud.points.read import OF_EXPERIMENT, POINT, in_stream
from hud.points.targets import arch_name
from hud.problems import Problem
from hud.runs.matching import ResourceRequest
from hud.runs.requests import RunOptions, request_rerun, spec_of
from hud.tables.table import IDENTITY, DataTable
from runner.schema.suite import BadRequest, TaskSpec, value_rule
from runner.schema.tasks import Replication
from runner.suites import SUITES


def experiment(request: HttpRequest, pk: int, data_format: str = "") -> HttpResponse:
    choice, complaints = query_string.read(Choice, request.GET, data_format)
    stream = streams.of_experiment(request, pk)
    page = query.read(pk, stream, choice, as_data=bool(data_format))
    if page is None:
        return data.missing(data_format, f"no experiment has the id {pk}")
    if data_format:
        return _data(page, data_format)
    form_of_rerun = rerun_form(
        page.experiment,
        page.places,
        spec=page.spec,
        initial=request.GET.dict(),
        whole=choice.options == "all",
    )
    wanted = choice.metric
    if wanted and not (page.history and page.history.metric.name == wanted):
        complaints.append(f"metric: not measured for this experiment: {wanted!r}")
    return _render(request, page, form_of_rerun, complaints=complaints)


def _data(page: ExperimentPage, data_format: str) -> HttpResponse:
    return data.answer_table(
        data_format,
        f"experiment-{page.experiment.pk}",
        DataTable(*in_stream(page.stream).columns, *ORIGIN.columns),
        [point for history in page.histories for point in history.points],
        experiment=IDENTITY.row(page.experiment),
        stream=page.stream.name,
        metrics=POINT.rows(page.metrics),
        backends=OF_EXPERIMENT.rows(cell for _one, cells in page.backends for cell in cells if cell),
        annotations=notes.COLUMNS.rows(page.notes),
        environments={one.fingerprint: one.facts for one in page.environments},
        **page.compilations.to_json(),
    )


def _render(
    request: HttpRequest, page: ExperimentPage, form: RerunForm, *, status: int = 200, **more: Any
) -> HttpResponse:
    history, canvas = page.history, state.canvas_of(page)
    values = [value for one in page.points for value in one.point.compilation_values if value is not None]
    regression = page.charts.active
    choices = [one.value for one in canvas.legend if one.value is not None]  # the autotuner's
    newest_alone = bool(history and history.newest and history.newest.processes == 1)
    rule = value_rule(page.experiment.suite, history.metric.name) if history else "median"
    context = {
        "page": page,
        "experiment": page.experiment,
        "regression": regression,
        "actions": possible(RegressionState(regression.state)) if regression else [],
        "choices": (min(choices), max(choices)) if len(choices) > 1 else None,
        "choice": page.choice,
        "canvas": canvas,
        "charts": [
            (row, drawing.chart(row, canvas, tall=not place)) for place, row in enumerate(page.charts.rows)
        ],
        "strips": [(row, drawing.strip(row, canvas)) for row in page.charts.strips],
        "hosts": drawing.hosts(canvas),
        "heads": drawing.heads(canvas) if canvas.events else "",
        "axis": drawing.axis(canvas),
        "details": state.details_of(page, canvas),
        "arch_name": arch_name(page.experiment.arch or page.experiment.device),
        "form": form,
        "command": page.spec.command() if page.spec else "",
        "older": f"{page.older[0].timestamp() * 1e6:.0f}_{page.older[1]}" if page.older else "",
        "target": _target_of(page.points),
        "with_sources": any(one.point.run.upload_id for one in page.points),
        "range": (min(values), max(values)) if values else (0.0, 1.0),
        "samples": drawing.samples(page.origin.samples, history.metric, rule if newest_alone else "median")
        if history and len(page.origin.samples) > 1
        else "",
        "rule": rule,
        **more,
    }
    streams.name_in_links(request)
    return render(request, "experiment/experiment.html", context, status=status)


def _target_of(points: Sequence[TableRow]) -> str | None:
    """Return the only target of these points, '' where they have several, None where none has any."""
    targets = [one.point.targets for one in points]
    found = {target.brief if target.own else "" for each in targets for target in each}
    several = len(found) > 1 or any(len(each) > 1 for each in targets)
    return None if not found else "" if several else found.pop()


def _address(request: HttpRequest, pk: int) -> str:
    """Return the address of the page from which a form came."""
    return f"{reverse('experiment', args=[pk])}?{request.GET.urlencode()}"


def rerun_form(
    asked: Experiment, places: list[Place], *, spec: TaskSpec | None = None, **options: Any
) -> RerunForm:
    """Return the form of a rerun, with a field for each knob of a suite that the runner has. `spec` is the
    task, where it is known."""
    try:
        spec = spec or spec_of(asked, device=asked.device)
    except BadRequest:
        return RerunForm(places=places, **options)
    suite = SUITES[asked.suite]
    return RerunForm(
        places=places,
        knobs=suite.options,
        own=spec.knobs,
        inductor=suite.takes_inductor_options(spec),
        compiles=suite.has_compilations(spec),
        noise=partial(noise_before, asked),
        **options,
    )


def _rerun_options(form: RerunForm, asked: Experiment, who: str, stream: Stream) -> RunOptions:
    """Return where and how often to run; without any place, `request_rerun` raises what is missing."""
    if not form.places:
        return RunOptions(ResourceRequest(asked.device, arch=asked.arch), who, stream=stream)
    place, said = form.place_chosen(), form.cleaned_data
    resources = ResourceRequest(
        place.device,
        place.host,
        place.arch,
        interpreter=said["environment"],
        base_interpreter=said["base_environment"],
    )
    return RunOptions(
        resources,
        who,
        stream=stream,
        replication=Replication(
            said.get("compilations"), said["repeats"], said["caches"] or None, draws=said["draws"]
        ),
        pinned=said.get("pinned", ""),
        candidate_options=said.get("new_options", {}),
    )


@after_login(lambda request, pk: f"{_address(request, pk)}&{form_as_it_was(request)}#rerun")
def request_run(request: HttpRequest, pk: int) -> HttpResponse:
    """Request a rerun. A visitor logs in first and finds the form as it was."""
    asked, stream = get_object_or_404(Experiment, pk=pk), streams.of_experiment(request, pk)
    form = rerun_form(asked, places_for(asked, present_accelerators()), data=request.POST)
    problem = ""
    if form.is_valid() or not form.places:
        try:
            options = _rerun_options(form, asked, request.user.get_username(), stream)
            run = request_rerun(asked, options, knobs=form.knobs_chosen() if form.places else {})
            return redirect("run", pk=run.pk)
        except BadRequest as error:
            problem = "" if form.refuse(error) else str(error)
    choice, _complaints = query_string.read(Choice, request.POST)
    page = query.read(pk, stream, choice)
    assert page is not None
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
