"""Start a run of a suite's cases, also of those that were never run: its plan and time, then the start.

Everything chosen is in the address, and the button starts what the page has planned for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from hud.accounts.access import scopes_of
from hud.hosts.registration import visible_accelerators
from hud.judging.comparison import plan_of
from hud.models import Experiment, Run, Stream
from hud.pages import streams
from hud.problems import Problem
from hud.runs import matching
from hud.runs.forms import NewRunForm, uid_of_form
from hud.runs.places import places_for
from hud.runs.requests import request_suite
from hud.runs.streams import find_or_make
from hud.sql import fetch_tuples
from runner.schema.suite import BadRequest, Suite
from runner.schema.tasks import Selection, plan
from runner.suites import SUITES

_RUNNABLE = {name: suite for name, suite in SUITES.items() if suite.headline_metrics and suite.cases}


@dataclass(frozen=True)
class CaseLine:
    """A case of the suite, and when it was measured last in the stream; None: never."""

    name: str
    newest: datetime | None
    is_chosen: bool


def new_run(request: HttpRequest) -> HttpResponse:
    """Show the form and the plan of what its address chooses; a POST to that address starts it."""
    stream = streams.of_request(request)
    suite = _RUNNABLE.get(request.GET.get("suite", ""), next(iter(_RUNNABLE.values())))
    form, problem, planned = _form(request, suite), "", None
    if form is None:
        problem = matching.reasons_of([suite.name], visible_accelerators()).get(
            suite.name, "no host is attached"
        )
    elif form.is_valid():
        try:
            if request.method == "POST":
                return redirect("run", pk=_request(request, form, suite).pk)
            with transaction.atomic():
                run = _request(request, form, suite)
                planned = plan_of(run, suite.name, form.cleaned_data["cases"])
                transaction.set_rollback(True)
        except (BadRequest, Problem) as error:
            is_shown = isinstance(error, BadRequest) and form.refuse(error)
            problem = "" if is_shown else str(error)
    context = {
        "suites": _RUNNABLE.values(),
        "suite": suite,
        "form": form,
        "preset": form.named("preset") if form else [],
        "matrix_fields": form.named("modes dtypes backends") if form else [],
        "ab_fields": form.named("environment base_environment new_options draws") if form else [],
        "number_fields": form.named("compilations repeats caches") if form else [],
        "cases": _cases(suite, stream, request.GET.getlist("cases")),
        "plan": planned,
        "problem": problem,
    }
    return render(request, "new_run/new_run.html", context, status=422 if request.method == "POST" else 200)


def _form(request: HttpRequest, suite: Suite) -> NewRunForm | None:
    """Return the form as the address fills it; None where no attached host offers the suite."""
    places = places_for(Experiment(suite=suite.name), visible_accelerators())
    if not places:
        return None
    given = request.GET.copy()
    if given.get("place") not in {place.key for place in places}:
        given["place"] = places[0].key
    given["repeats"] = given.get("repeats") or "1"
    device = next(place.device for place in places if place.key == given["place"])
    spec = plan(Selection(suite.name, device))[0]
    return NewRunForm(given, spec=spec, places=places)


def _request(request: HttpRequest, form: NewRunForm, suite: Suite) -> Run:
    """Store the run. Raise BadRequest, or Problem for a stream that the person may not write."""
    name = form.cleaned_data["into"]
    user: Any = request.user
    is_operator = "rules" in scopes_of(request)
    stream = find_or_make(name, owner=user, is_operator=is_operator) if name else None
    options = replace(form.options(user.get_username(), stream), uid=uid_of_form(request))
    selection, preset = form.selection(suite.name, options.resources.device), form.cleaned_data.get("preset")
    if preset and selection.knobs:
        raise BadRequest("a preset has its own options of the suite")
    return request_suite(selection, options, preset=preset or "")


def _cases(suite: Suite, stream: Stream, chosen: Sequence[str]) -> list[CaseLine]:
    """Return the cases of a suite, the chosen ones first: 1 statement."""
    rows = fetch_tuples(
        """
        SELECT e."case", max(t.order_time) FROM hud_seriesstate t
        JOIN hud_series s ON s.id = t.series_id AND s.stream_id = %(stream)s
        JOIN hud_experiment e ON e.id = s.experiment_id AND e.suite = %(suite)s GROUP BY 1
        """,
        {"stream": stream.pk, "suite": suite.name},
    )
    newest = dict(rows)
    lines = [CaseLine(case.name, newest.get(case.name), case.name in chosen) for case in suite.cases]
    return sorted(lines, key=lambda line: not line.is_chosen)
