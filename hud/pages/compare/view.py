"""Two or more runs side by side."""

from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from hud.judging.compare import query, sides, text
from hud.judging.compare.groups import Formulas
from hud.pages import data, query_string, streams
from hud.pages.compare import chooser
from hud.pages.query_string import one_of, words
from hud.points.sides import BadSide
from hud.problems import Problem


@dataclass(frozen=True)
class _Filters(query.Filters):
    """The page's query string."""

    base: str = words(300)
    rows: str = one_of("all")  # not only the largest
    metric: str = words()
    suite: str = words(60)
    verdict: str = one_of(*query.VERDICTS)
    formulas: Formulas = one_of("hud")
    arch: str = words(100)
    mode: str = words(40)
    dtype: str = words(40)


def compare(request: HttpRequest, data_format: str = "") -> HttpResponse:
    """Show the comparison, or without sides those that could be made."""
    filters, complaints = query_string.read(_Filters, request.GET, data_format)
    stream, page, status = streams.of_request(request), None, 200
    heads = list(filter(None, request.GET.getlist("head")))  # one by one, as it may be repeated
    if filters.base and heads:
        try:
            page = query.read(filters.base, heads, filters, stream)
        except BadSide as error:
            if data_format:
                return Problem(error.status, str(error)).response()
            complaints, status = [str(error)], error.status
    elif ticked := request.GET.getlist("side"):  # of the list of runs, which has the newest first
        chosen = [("base", ticked[-1]), *(("head", side) for side in ticked[-2::-1])]
        return redirect(f"{streams.link(reverse('compare'))}&{urlencode(chosen)}")
    everything = filters.rows == "all"
    if page is None:
        offered = chooser.offered(stream, all_streams=everything)
        if data_format:
            return data.answer_table(data_format, "compare-sides", chooser.OFFER, offered.runs)
        context = {"offered": offered, "filters": filters, "heads": heads, "problems": complaints}
        return render(request, "compare/chooser.html", context, status=status)
    if data_format:
        return data.answer(data_format, "compare", page.to_rows(), query.HEADER, **page.to_json())
    rows = text.shown(page, everything=everything)
    chosen = [
        (name, value) for name, value in asdict(filters).items() if value and name not in ("base", "rows")
    ]
    address = [("stream", stream.name), ("base", filters.base), *(("head", head) for head in heads)]
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
