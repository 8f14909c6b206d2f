"""The list of runs, and one run with its log and artifacts."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from hud.accounts.access import scopes_of
from hud.corrections.deletion import may_delete
from hud.judging.compare import ab_runs
from hud.models import Point, Run, Series, Task, Upload
from hud.pages import data, query_string, streams
from hud.pages.run import query, table
from hud.pages.run.query import RunPage
from hud.pages.run.results import ResultFilters
from hud.runs import lines, logs, tasks
from hud.runs.requests import request_explanation
from hud.tables.html import NOTHING, csrf_field
from runner.schema.draws import LEAST_DRAWS
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import BadRequest

_SHOWN_BYTES = 128 * 1024
_SHOWN_LINES = 1000
_BEFORE = 100  # lines above one that was asked for
_SEARCHED_BYTES = 512 * 1024  # for the first error
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07|[\x00-\x08\x0b\x0c\x0e-\x1f]")
# The last line of a traceback, and what kernels, CUDA and our runner write when a process dies
ERROR = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?:[\w.]+(?:Error|Exception|Failed|Failure)\b(?:: .*)?$|Fatal Python error"
    r"|Segmentation fault|Killed|Aborted|.*\bCUDA error\b|ERROR\b|FAILED\b)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class LogLine:
    number: int
    text: str

    @property
    def is_error(self) -> bool:
        return bool(ERROR.match(self.text))


@dataclass(frozen=True)
class LogView:
    """Lines of a task's log. `pinned`: the reader chose the task, so the page stays at it."""

    task: Task
    lines: list[LogLine]
    earlier: int  # lines before them
    start: int  # bytes before the first line
    end: int  # bytes up to the end of the last one
    pinned: bool

    @property
    def last(self) -> int:
        return self.earlier + len(self.lines)

    @property
    def later(self) -> int | None:
        return self.last + 1 if self.end < self.task.log_bytes else None


def read_log(task: Task, *, pinned: bool, line: int | None = None) -> LogView:
    """Return the last lines of a log, or where line `line` is before those, the part around it."""
    rows = _LINES.findall(logs.read(task, 0, task.log_bytes))
    first = max(0, len(rows) - _count_shown(rows[: -_SHOWN_LINES - 1 : -1]))
    if line is not None and line <= first:
        first = max(0, line - 1 - _BEFORE)
    shown = rows[first : first + _SHOWN_LINES]
    shown = shown[: _count_shown(shown)]
    start, piece = sum(map(len, rows[:first])), b"".join(shown)
    texts = readable(piece).removesuffix("\n").split("\n") if piece else []
    lines = [LogLine(number, text) for number, text in enumerate(texts, first + 1)]
    return LogView(task, lines, first, start, start + len(piece), pinned)


def _count_shown(rows: Sequence[bytes]) -> int:
    """Return how many of these lines to show at once: at least one."""
    return max(1, sum(size <= _SHOWN_BYTES for size in accumulate(map(len, rows))))


def first_error(task: Task) -> LogLine | None:
    """Return the first line of a log that tells an error, looked for in its first half megabyte."""
    text = readable(logs.read(task, 0, _SEARCHED_BYTES))
    match = ERROR.search(text)
    if match is None:
        return None
    end = text.find("\n", match.start())
    return LogLine(text.count("\n", 0, match.start()) + 1, text[match.start() : end if end >= 0 else None])


def readable(piece: bytes) -> str:
    """Decode a piece of a log without terminal codes; of a progress bar only its last state."""
    text = _TERMINAL_CODES.sub("", piece.decode("utf-8", "replace").replace("\r\n", "\n"))
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n")) if "\r" in text else text


SHOWN_POINTS = 50  # of the results on a page
JSON_POINTS = 200  # in one answer; `next` is the number of the next page
_ALL_POINTS = 20_000  # in a CSV


@dataclass(frozen=True)
class LogPosition:
    """A place in the log of a run's task."""

    task: int | None = query_string.number(least=0)
    line: int | None = query_string.number()  # that the page begins before


def run(request: HttpRequest, pk: int, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(ResultFilters, request.GET, data_format)
    size = {"json": JSON_POINTS, "csv": _ALL_POINTS}.get(data_format, SHOWN_POINTS)
    page = query.read(pk, filters, size, grouped=not data_format)
    streams.enter(request, page.run.stream)
    if data_format:
        return _data(request, page, data_format)
    # the log of the chosen task; else of the one that runs, failed first or was the last
    asked, _complaints = query_string.read(LogPosition, request.GET)
    chosen = next((one for one in page.tasks if one.task.position == asked.task), None)
    shown = chosen or (page.failed if not page.active else None) or page.current
    log = read_log(shown.task, pinned=chosen is not None, line=asked.line) if shown else None
    return render(request, "run/run.html", {**_context(request, page), "log": log, "complaints": complaints})


def _data(request: HttpRequest, page: RunPage, data_format: str) -> HttpResponse:
    name = f"run-{page.run.pk}"
    compared = ab_runs.METRIC.rows(page.pairs)
    if data_format == "csv":
        if request.GET.get("table") == "pairs":
            return data.answer(data_format, f"{name}-pairs", compared, ab_runs.METRIC.names)
        return data.answer(data_format, name, page.to_rows(), query.HEADER)
    results = page.results
    line = lines.RunLine(page.run, page.progress.done, page.progress.total)
    return data.answer(
        data_format,
        name,
        page.to_rows(),
        run=lines.COLUMNS.row(line),
        pairs=compared,
        total=results.total,
        next=results.next_page,
        blind=page.blind,
        counts={kind: count.points for kind, count in results.counts.items()},
        waiting=page.waiting and asdict(page.waiting),
        kernels=ab_runs.KERNELS.rows(page.kernels),
        artifacts=lines.ARTIFACT.rows(page.artifacts),
    )


def live(request: HttpRequest, pk: int) -> HttpResponse:
    """Render the parts of the page that change while it runs."""
    filters, _complaints = query_string.read(ResultFilters, request.GET)
    page = query.read(pk, filters, SHOWN_POINTS)
    streams.enter(request, page.run.stream)
    response = render(request, "run/live.html", _context(request, page))
    response["Cache-Control"] = "no-store"
    if not page.changes:
        response["X-Poll"] = "stop"
    return response


def _context(request: HttpRequest, page: RunPage) -> dict[str, Any]:
    """Return the page, its first error, and what of it the visitor may delete."""
    scopes = scopes_of(request)
    page.csrf = csrf_field(request) if "run" in scopes else NOTHING

    def may(uploads: list[Upload]) -> bool:
        return "upload" in scopes and may_delete(uploads, scopes=scopes, owner_id=request.user.pk)

    return {
        "page": page,
        "results_table": table.results_html(request, page),
        "least_pairs": LEAST_PAIRS,
        "least_draws": 2 * LEAST_DRAWS,
        "error": first_error(page.failed.task) if page.failed else None,
        "deletable": not page.active and may(page.uploads),
        "deletable_uploads": {upload.pk for upload in page.uploads if may([upload])},
    }


def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    asked = get_object_or_404(Run, pk=pk)
    tasks.cancel(run=asked, who=request.user.get_username())
    messages.success(request, f"Cancelling run {pk}.")
    return redirect("run", pk=pk)


def explain(request: HttpRequest, pk: int) -> HttpResponse:
    """Request a run that finds the part of the compiler at fault for a failed result."""
    failed = get_object_or_404(Run, pk=pk)
    chosen = query_string.ids_of(request.POST.getlist("series"))
    if len(chosen) != 1:
        return HttpResponse(status=400)
    of_run = Point.objects.filter(run=failed).values("series_id")
    known = Series.objects.select_related("experiment", "metric").filter(pk__in=of_run)
    series = get_object_or_404(known, pk=chosen[0])
    try:
        asked = request_explanation(failed, series, request.user.get_username())
    except BadRequest as error:
        messages.error(request, str(error))
        return redirect("run", pk=pk)
    return redirect("run", pk=asked.pk)
