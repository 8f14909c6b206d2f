"""The list of suites, and the table of one."""

from dataclasses import asdict

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from hud.models import Experiment
from hud.pages import data, query_string, streams
from hud.pages.query_string import MAX_ID
from hud.pages.suite import matrix, query
from hud.points.read import POINT
from hud.runs.matching import ResourceRequest
from hud.runs.requests import RunOptions, request_reruns
from hud.tables.badges import WORDS
from hud.tables.table import IDENTITY
from runner.schema.suite import BadRequest

MOST_RERUN = 200  # experiments of one request


class SuiteRerun(forms.Form):
    """One experiment whose own button was pressed, and where to run it or those that are ticked."""

    only = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)
    where = forms.RegexField(r"^(cuda|cpu):[\w.-]{1,60}$", required=False)  # '': each on its own arch


def suite_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    lines = query.read_all(streams.of_request(request))
    if data_format:
        return data.answer(data_format, "suites", lines)
    streams.name_in_links(request)
    return render(request, "suite/suites.html", {"lines": lines})


def suite(request: HttpRequest, name: str, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.SuiteFilters, request.GET, data_format)
    stream = streams.of_request(request)
    page = query.read(stream, name, filters, data_format)
    if page is None:
        return data.missing(data_format, f"no suite is called {name!r}")
    if data_format:
        return data.answer(
            data_format,
            f"suite-{name}",
            query.data_rows(page, stream),
            (*IDENTITY.names, "stream", *POINT.names),
            suite=name,
            stream=stream.name,
            total=page.total,
            page=filters.page,
            totals=page.totals and asdict(page.totals),
        )
    query.trends(page.rows)
    query.add_places(page)
    counts = page.counts(filters)
    results = {"verdict": query.VERDICTS, "status": query.STATUSES, "target": query.TARGETS}
    results["expectation"] = query.EXPECTATIONS
    offered: dict[str, query_string.Choices] = {}  # with how many experiments each would leave
    for filter_name, choices in {**page.choices, **results}.items():
        value, own = getattr(filters, filter_name), counts.get(filter_name)
        shown = choices if value in ("", *choices) else [*choices, value]  # an unknown value stays visible
        offered[filter_name] = [
            (choice, WORDS.get(choice, choice) + (f" ({own.get(choice, 0)})" if own else ""))
            for choice in shown
        ]
    context = {
        "page": page,
        "filters": filters,
        "filtered": filters != query.SuiteFilters(),
        "complaints": complaints,
        "form": query_string.filter_form(
            filters,
            offered=offered,
            hidden={"stream": stream.name},
            clear=streams.link(reverse("suite", args=[name])),
        ),
        "varying": page.varying,
        "constant": page.constant,
        "last_page": max(1, -(-page.total // query.PAGE_ROWS)),
        "matrix": matrix.read(stream, name),
    }
    streams.name_in_links(request)
    return render(request, "suite/suite.html", context)


def rerun(request: HttpRequest, name: str) -> HttpResponse:
    """Request a run of the chosen experiments: one for each device and arch that they have."""
    form = SuiteRerun(request.POST)
    back = f"{reverse('suite', args=[name])}?{request.GET.urlencode()}".rstrip("?")
    ticked = request.POST.getlist("experiment")
    ids = [int(pk) for pk in ticked if pk.isascii() and pk.isdecimal() and len(pk) < 10]
    chosen: list[Experiment] = []
    if form.is_valid():
        wanted = [form.cleaned_data["only"]] if form.cleaned_data["only"] else ids
        chosen = list(Experiment.objects.filter(suite=name, pk__in=wanted)[:MOST_RERUN])
    if not chosen:
        messages.error(request, "Tick the experiments to run again.")
        return redirect(back)
    groups: dict[tuple[str, str], list[Experiment]] = {}
    for one in chosen:
        device, _colon, arch = form.cleaned_data["where"].partition(":")
        groups.setdefault((device, arch) if device else (one.device, one.arch), []).append(one)
    runs, stream = [], streams.of_request(request)
    for (device, arch), experiments in groups.items():
        resources = ResourceRequest(device, arch=arch)
        options = RunOptions(resources, request.user.get_username(), stream=stream)
        try:
            runs.append(request_reruns(experiments, options))
        except BadRequest as error:
            messages.error(request, f"{arch or device}: {error}.")
    if len(runs) == 1 and len(groups) == 1:
        return redirect("run", pk=runs[0].pk)
    if runs:
        messages.success(request, f"Runs requested: {', '.join(str(run.pk) for run in runs)}.")
    return redirect(back)
