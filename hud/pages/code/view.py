"""The page What changed: the kernels of two points, and the experiments that have kernels at two."""

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from hud.judging.kernels.changes import KERNELS, read
from hud.judging.kernels.lines import LINES, by_line
from hud.judging.kernels.table import KernelTable
from hud.models import Experiment, Stream
from hud.pages import data, query_string, streams
from hud.pages.code.flame import icicle
from hud.pages.query_string import ids_of, one_of, words
from hud.points.kernels import code_of
from hud.points.sides import BadSide
from hud.sql import fetch_models
from hud.tables.table import IDENTITY, DataTable
from runner.schema.replay import replay_file

_COMPARABLE = DataTable[Any](
    *IDENTITY.columns,
    "points base head time=newest_time",
    base=lambda line: line.sides[0],
    head=lambda line: line.sides[1],
)
_MOST_LINES = 30


@dataclass(frozen=True)
class _Asked:
    """Two points, as `hud.points.sides` reads them, and the slot of the kernel whose code to show."""

    base: str = words(300)
    head: str = words(300)
    kernel: str = words(16)
    by: str = one_of("class")  # the lines of source, else one by one
    q: str = words()  # of the chooser


def code(request: HttpRequest, data_format: str = "") -> HttpResponse:
    """Show the comparison, or without sides those that could be made."""
    asked, complaints = query_string.read(_Asked, request.GET, data_format)
    stream, page = streams.of_request(request), None
    if asked.base and asked.head:
        try:
            page = read(asked.base, asked.head, stream, slot=asked.kernel, with_code=not data_format)
        except BadSide as error:
            if data_format:
                return error.response()
            complaints = [str(error)]
    if page is None:
        lines = comparable(stream, asked.q)
        if data_format:
            same = {"stream": stream.name}
            return data.answer_table(data_format, "code-points", _COMPARABLE, lines, constant=same)
        offer = {"lines": lines, "text": asked.q, "complaints": complaints}
        return render(request, "code/chooser.html", offer)
    if data_format:
        return data.answer(data_format, "code", page.to_rows(), KERNELS.names, **page.to_json(asked.by))
    lines = by_line(page.attribution.changes, asked.by)
    others = query_string.without(request.GET, "kernel")
    links = {slot: f"?kernel={slot}{others}#source" for slot in page.slots_with_code}
    context = {
        "page": page,
        "asked": asked,
        "table": KernelTable.of(page.attribution),
        "lines": LINES.html(lines[:_MOST_LINES], page.one_point, css="blocks") if lines else "",
        "flame": icicle(page.attribution.changes, links, one_point=page.one_point),
        "complaints": complaints,
    }
    return render(request, "code/code.html", context)


def replay(request: HttpRequest, binary: str) -> HttpResponse:
    """Answer with the file that runs a stored kernel of a run alone; without a run, of an operator's file.
    Raise Http404 without its code or operands."""
    run = next(iter(ids_of(request.GET.getlist("run"))), 0)
    try:
        text = replay_file(code_of([binary], run).get((run, binary), ""))
    except (ValueError, RecursionError) as error:
        raise Http404(f"{error}") from error
    answer = HttpResponse(text, content_type="text/x-python; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="kernel-{binary}.py"'
    return answer


def _sides(line: Any) -> tuple[str, str, str]:
    """Return two sides and the words for the link: of an A/B run its own, of a single point its fastest and
    its slowest compilation."""
    newest, *older = (f"run:{run}/experiment:{line.pk}" for run in line.runs)
    if line.ab[0]:
        return newest, newest, "the sides of the A/B run"
    if older:
        return older[0], newest, "newest two points"
    base, head = (f"{newest}/compilation:{number}" for number in (line.fastest, line.slowest))
    return base, head, "fastest and slowest compilation"


def comparable(stream: Stream, text: str) -> list[Any]:
    """Return the experiments with compilations to compare in a stream, the newest first, with the number of
    their points, and of the newest two the runs and the fastest and slowest compilation: 1 statement."""
    lines: list[Any] = fetch_models(
        Experiment,
        """
        JOIN (
            SELECT experiment_id, count(*) points,
                (array_agg(run_id ORDER BY order_time DESC, run_id DESC))[1:2] runs,
                (array_agg(ab ORDER BY order_time DESC, run_id DESC))[1:2] ab,
                (array_agg(numbers[1] ORDER BY order_time DESC, run_id DESC))[1] fastest,
                (array_agg(numbers[cardinality(numbers)] ORDER BY order_time DESC, run_id DESC))[1] slowest,
                max(order_time) newest_time
            FROM (
                SELECT c.experiment_id, c.run_id, c.order_time, r.base_interpreter <> '' ab,
                    array_agg(coalesce(c.number, c.repeat) ORDER BY c.busy_us, c.repeat)
                        FILTER (WHERE c.busy_us IS NOT NULL) numbers
                FROM hud_compilation c JOIN hud_run r ON r.id = c.run_id AND r.stream_id = %(stream)s
                WHERE c.draw IS NULL GROUP BY c.experiment_id, c.run_id, c.order_time, ab
            ) point
            GROUP BY experiment_id HAVING count(*) > 1 OR bool_or(ab) OR max(cardinality(numbers)) > 1
        ) line ON line.experiment_id = own.id
        WHERE position(lower(%(text)s) IN lower(concat_ws(' ', suite, "case", backend, arch))) > 0
        ORDER BY newest_time DESC, own.id LIMIT 100
        """,
        {"stream": stream.pk, "text": text},
        computed={name: name for name in ("points", "runs", "ab", "fastest", "slowest", "newest_time")},
    )
    for line in lines:
        line.sides = _sides(line)
    return lines
