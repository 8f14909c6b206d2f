"""Two or more runs side by side."""

from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from hud.models import Stream
from hud.pages import data, query_string, streams
from hud.pages.compare import query, sides, text
from hud.pages.compare.query import Filters
from hud.pages.query_string import one_of, words
from hud.points.sides import BadSide
from hud.problems import Problem


@dataclass(frozen=True)
class _Asked:
    """Hold the baseline and whether to show all rows. `head` is read apart, since it may be repeated."""

    base: str = words(300)
    rows: str = one_of("all")


def compare(request: HttpRequest, data_format: str = "") -> HttpResponse:
    """Show the comparison, or without sides those that could be made."""
    filters, complaints = query_string.read(Filters, request.GET, data_format)
    asked, wrong = query_string.read(_Asked, request.GET, data_format)
    complaints += wrong
    stream = streams.of_request(request)
    base, everything = asked.base, asked.rows == "all"
    heads = [head for head in request.GET.getlist("head") if head]
    if not base or not heads:
        return _chooser(request, data_format, base, heads, complaints)
    try:
        page = query.read(base, heads, filters, stream)
    except BadSide as error:
        if data_format:
            return Problem(error.status, str(error)).response()
        return _chooser(request, "", base, heads, [str(error)], status=error.status)
    if data_format:
        return data.answer(data_format, "compare", page.to_rows(), query.HEADER, **page.to_json())
    rows = text.shown(page, everything=everything)
    chosen = [(name, value) for name, value in asdict(page.filters).items() if value]
    address = [("stream", stream.name), ("base", base), *(("head", head) for head in heads)]
    context = {
        "page": page,
        "rows": rows,
        "markdown": text.markdown(page, rows),
        "counts_of_page": page.waiting,
        "query_of_counts": urlencode([*address[:3], *page.filters.subject.items()]),
        "everything": everything,
        "verdicts": [(word, sum(one.verdicts[word] for one in page.candidates)) for word in query.VERDICTS],
        "complaints": complaints,
        "chosen": chosen,
        "subject": [(name, value) for name, value in page.filters.subject.items() if value],
        "most_heads": sides.MOST_SIDES - 1,
        "markdown_url": f"{reverse('api:get_compare')}?{urlencode([*address, *chosen, ('format', 'md')])}",
    }
    return render(request, "compare/compare.html", context)


def _chooser(
    request: HttpRequest,
    data_format: str,
    base: str,
    heads: list[str],
    problems: list[str],
    *,
    status: int = 200,
) -> HttpResponse:
    if ticked := request.GET.getlist("side"):  # of the list of runs, which has the newest first
        chosen = [("base", ticked[-1]), *(("head", side) for side in ticked[-2::-1])]
        return redirect(f"{streams.link(reverse('compare'))}&{urlencode(chosen)}")
    stream: Stream = request.stream  # type: ignore[attr-defined]  # of `of_request`
    offered = sides.offered(stream, all_streams=request.GET.get("rows") == "all")
    if data_format:
        return data.answer_table(data_format, "compare-sides", sides.OFFER, offered.runs)
    context = {"offered": offered, "base": base, "head": heads[0] if heads else "", "problems": problems}
    return render(request, "compare/chooser.html", context, status=status)
