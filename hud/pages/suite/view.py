"""The list of suites, and the table of one."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from hud.hosts.registration import visible_accelerators
from hud.models import FIRST_RUN_ONLY, Experiment, Stream
from hud.pages import data, query_string, streams
from hud.pages.suite import query
from hud.pages.suite.query import place
from hud.points.read import HEADER, NEWEST_POINT, rows_in_stream
from hud.runs import matching
from hud.runs.branches import stored_names
from hud.runs.forms import uid_of_form
from hud.runs.matching import ResourceRequest
from hud.runs.requests import RunOptions, request_reruns
from hud.sql import fetch_tuples
from hud.tables.html import WORDS
from runner.schema.suite import BadRequest, Matrix
from runner.suites import SUITES

_MOST_LINES = 200


@dataclass(slots=True)
class MatrixLine:
    """One model at equal batch, precision and iterations: seconds per iteration by backend."""

    case: str
    mode: str
    dtype: str
    arch: str  # or its device, where that is unknown
    runtime: str  # of XLA
    batch_size: Any
    iterations: int
    matrix: Matrix
    results: dict[str, tuple[int, float]] = field(default_factory=dict)  # experiment and time, s, by backend

    @property
    def ratio(self) -> float:
        """How many times as fast the second of the compared backends is."""
        first, second = (self.results[name][1] for name in self.matrix.ratio)
        return first / second

    @property
    def cells(self) -> list[tuple[int | None, float | None]]:
        return [self.results.get(name, (None, None)) for name in self.matrix.backends]


def matrix_of(stream: Stream, suite: str) -> dict[str, Any] | None:
    """Return the newest check and the newest time of every experiment in a stream, in one statement; None
    where the suite has no matrix. `codes` have meaning, advice and how many newest checks have the code."""
    matrix = SUITES[suite].matrix if suite in SUITES else None
    if matrix is None:
        return None
    rows = fetch_tuples(
        f"""
        SELECT m.name, found.value, found.code, found.note, e.id, e."case", e.mode, e.dtype, e.backend,
            e.arch, e.device, e.knobs::text
        FROM hud_experiment e
        JOIN hud_series s ON s.experiment_id = e.id
        JOIN hud_metric m ON m.id = s.metric_id
        CROSS JOIN LATERAL ({NEWEST_POINT}) found
        WHERE e.suite = %(suite)s AND s.stream_id = %(stream)s AND m.name IN (%(time)s, %(code)s)
        ORDER BY e."case", e.mode, e.dtype, e.arch, e.device, e.id
        """,  # noqa: S608 — a constant  # nosec B608
        {
            "suite": suite,
            "stream": stream.pk,
            "time": matrix.time_metric,
            "code": matrix.code_metric,
            "branches": stored_names(),
            "until": "infinity",
        },
    )
    codes = Counter(code for metric, _value, code, *_more in rows if metric == matrix.code_metric and code)
    lines = [(code, *said, codes.pop(code, 0)) for code, said in matrix.codes.items()]
    lines += [(code, "", "", count) for code, count in sorted(codes.items())]
    # a single repeat has no time without compilation
    times = [
        (value, *about)
        for metric, value, _code, note, *about in rows
        if metric == matrix.time_metric and value is not None and FIRST_RUN_ONLY not in (note or "")
    ]
    comparisons = _comparisons(times, matrix)[:_MOST_LINES]
    return {"codes": lines, "comparisons": comparisons, "backends": matrix.backends}


def _comparisons(times: Sequence[tuple[Any, ...]], matrix: Matrix) -> list[MatrixLine]:
    """Return experiments that differ in the backend alone, where both compilers have a time.

    Each line has one XLA runtime, with eager and inductor as they run without any.
    """
    lines: dict[tuple[Any, ...], MatrixLine] = {}
    plain: dict[tuple[Any, ...], dict[str, tuple[int, float]]] = {}
    for value, experiment, case, mode, dtype, backend, arch, device, knobs_text in times:
        knobs = json.loads(knobs_text)
        runtime = str(knobs.pop(matrix.runtime_knob, ""))
        subject = case, mode, dtype, place(arch, device)
        key = (*subject, json.dumps(knobs, sort_keys=True))
        if backend in matrix.runtime_backends:
            batch_size, iterations = knobs.get("batch_size", ""), knobs.get("iterations_per_run", 1)
            line = MatrixLine(*subject, runtime, batch_size, iterations, matrix)
            lines.setdefault((*key, runtime), line).results[backend] = experiment, value
        elif backend in matrix.backends and not runtime:
            plain.setdefault(key, {})[backend] = experiment, value
    for key, line in lines.items():
        line.results |= plain.get(key[:-1], {})
    return [line for line in lines.values() if line.results.keys() >= set(matrix.ratio)]


MOST_RERUN = 200  # experiments of one request


class SuiteRerun(forms.Form):
    """The form of where to run the experiments that are ticked, or the one whose own button was pressed."""

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
    if data_format:
        return data.answer(
            data_format,
            f"suite-{name}",
            rows_in_stream(page.points, stream),
            HEADER,
            suite=name,
            stream=stream.name,
            total=page.total,
            page=filters.page,
            totals=page.totals and asdict(page.totals),
        )
    query.trends(page.rows)
    accelerators = visible_accelerators()
    offering = [accelerator for accelerator in accelerators if name in accelerator.catalog.get("suites", [])]
    page.attached = sorted({(accelerator.device, accelerator.arch) for accelerator in offering})
    page.not_offered = matching.reasons_of([name], accelerators).get(name, "")
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
        "matrix": matrix_of(stream, name),
    }
    streams.name_in_links(request)
    return render(request, "suite/suite.html", context)


def rerun(request: HttpRequest, name: str) -> HttpResponse:
    """Request a run of the chosen experiments: one for each device and arch that they have."""
    form = SuiteRerun(request.POST)
    back = f"{reverse('suite', args=[name])}?{request.GET.urlencode()}".rstrip("?")
    ids = query_string.ids_of(request.POST.getlist("only") or request.POST.getlist("experiment"))
    chosen: list[Experiment] = []
    if form.is_valid():
        chosen = list(Experiment.objects.filter(suite=name, pk__in=ids)[:MOST_RERUN])
    if not chosen:
        messages.error(request, "Tick the experiments to run again.")
        return redirect(back)
    groups: dict[tuple[str, str], list[Experiment]] = {}
    for row in chosen:
        device, _colon, arch = form.cleaned_data["where"].partition(":")
        groups.setdefault((device, arch) if device else (row.device, row.arch), []).append(row)
    runs, stream = [], streams.of_request(request)
    for (device, arch), experiments in groups.items():
        resources = ResourceRequest(device, arch=arch)
        uid = uid_of_form(request, device, arch)
        options = RunOptions(resources, request.user.get_username(), stream=stream, uid=uid)
        try:
            runs.append(request_reruns(experiments, options))
        except BadRequest as error:
            messages.error(request, f"{arch or device}: {error}.")
    if len(runs) == 1 and len(groups) == 1:
        return redirect("run", pk=runs[0].pk)
    if runs:
        messages.success(request, f"Runs requested: {', '.join(str(run.pk) for run in runs)}.")
    return redirect(back)
