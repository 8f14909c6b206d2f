"""Two or more runs side by side, and the runs and nights that may be."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from hud.judging.compare import query, sides, text
from hud.judging.compare.differences import sentence
from hud.models import TERMINAL, Run, State, Stream
from hud.pages import data, query_string, streams
from hud.pages.query_string import one_of, words
from hud.points import nights
from hud.points.sides import FILTERS, BadSide
from hud.runs.lines import OfRun
from hud.sql import fetch_tuples
from hud.tables.table import DataTable

_MOST_OFFERED = 40
_MOST_RECENT = 300  # runs of which hosts, branches and versions of torch are offered
_MOST_NIGHTS = 14  # among which the last two are looked for
_OFFER = DataTable("""
    side run=run.pk stream=run.stream.name title source=run.source filename=run.upload?.filename branch
    commit=run.commit host=run.host_name time=run.order_time
""")


@dataclass(frozen=True)
class _Filters(query.Filters):
    base: str = words(300)
    rows: str = one_of("all")  # not only the largest
    metric: str = words()
    suite: str = words(60)
    verdict: str = one_of(*query.VERDICTS)
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
                return error.response()
            complaints, status = [str(error)], error.status
    elif ticked := request.GET.getlist("side"):  # of the list of runs, which has the newest first
        chosen = [("base", ticked[-1]), *(("head", side) for side in ticked[-2::-1])]
        return redirect(f"{streams.link(reverse('compare'))}&{urlencode(chosen)}")
    everything = filters.rows == "all"
    if page is None:
        choices = offered(stream, all_streams=everything)
        if data_format:
            return data.answer_table(data_format, "compare-sides", _OFFER, choices.runs)
        chosen = [(name, getattr(filters, name)) for name in ("suite", "mode", "dtype", "metric")]
        context = {
            "offered": choices,
            "values": values_of(stream),
            "chosen": [(name, value) for name, value in chosen if value],
            "filters": filters,
            "heads": heads,
            "problems": complaints,
        }
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
        "query_of_counts": urlencode([*address[:3], *page.subject.items()]),
        "everything": everything,
        "verdicts": [(word, sum(one.verdicts[word] for one in page.candidates)) for word in query.VERDICTS],
        "complaints": complaints,
        "chosen": chosen,
        "subject": [(name, value) for name, value in page.subject.items() if value],
        "differs": sentence(page.facts, page.across),
        "most_heads": sides.MOST_SIDES - 1,
        "markdown_url": f"{reverse('api:get_compare')}?{urlencode([*address, *chosen, ('format', 'md')])}",
    }
    return render(request, "compare/compare.html", context)


@dataclass(frozen=True)
class Offer(OfRun):
    """A run that may be a side."""

    run: Run

    @property
    def side(self) -> str:
        return f"run:{self.run.pk}"

    @property
    def origin(self) -> list[str]:
        """Return what distinguishes runs of one title and commit: source, file and external id."""
        return [*filter(None, [self.run.source]), *super().origin]


@dataclass(frozen=True)
class Chooser:
    runs: list[Offer]
    nights: tuple[str, str] | None  # sides: the newest two nights with a common case
    newest_two: tuple[str, str] | None  # the newest two runs of the stream with a common case


def offered(stream: Stream, *, all_streams: bool = False) -> Chooser:
    """Return the newest runs of the stream, or of all with the stream's first; and its last two nights: 4
    statements."""
    ended = Run.objects.filter(state__in=TERMINAL).order_by("-order_time", "-pk")
    ended = ended.select_related("upload", "stream")
    ended = ended.defer("provenance", "upload__parameters", "upload__receipt")
    newest = list((ended if all_streams else ended.filter(stream=stream))[:_MOST_OFFERED])
    runs = sorted(newest, key=lambda run: (run.stream_id != stream.pk, run.stream.name))
    now = timezone.now()
    ready = [night for night in reversed(nights.read(stream)) if night.is_default(now)][:_MOST_NIGHTS]
    own = [run.pk for run in runs if run.stream_id == stream.pk and not run.rerun and not run.is_ab]
    return Chooser(
        [Offer(run) for run in runs],
        _newest_two([(night.side, night.runs) for night in ready]),
        _newest_two([(f"run:{run}", (run,)) for run in own]),
    )


def values_of(stream: Stream) -> list[tuple[str, list[str]]]:
    """Return what a side of the stream may name beside its runs, of each kind with several values, those
    with the most experiments or newest runs first: 1 statement."""
    rows = fetch_tuples(
        """
        WITH recent AS (
            SELECT id, host_name, branch, order_time FROM hud_run
            WHERE stream_id = %(stream)s ORDER BY order_time DESC LIMIT %(most)s
        ), measured AS (
            SELECT e.* FROM hud_experiment e
            WHERE EXISTS (SELECT FROM hud_series WHERE experiment_id = e.id AND stream_id = %(stream)s)
        )
        SELECT 'arch', coalesce(nullif(arch, ''), device), count(*) FROM measured GROUP BY 2
        UNION ALL SELECT 'backend', backend, count(*) FROM measured GROUP BY 2
        UNION ALL SELECT 'dtype', dtype, count(*) FROM measured GROUP BY 2
        UNION ALL SELECT 'host', host_name, max(id) FROM recent GROUP BY 2
        UNION ALL SELECT 'branch', branch, max(id) FROM recent WHERE branch <> '' GROUP BY 2
        UNION ALL SELECT 'torch', e.torch, max(r.id) FROM recent r CROSS JOIN LATERAL (
            SELECT environment_id FROM hud_point WHERE run_id = r.id LIMIT 1) p
            JOIN hud_environment e ON e.id = p.environment_id GROUP BY 2
        ORDER BY 3 DESC, 2
        """,
        {"stream": stream.pk, "most": _MOST_RECENT},
    )
    found: dict[str, list[str]] = {kind: [] for kind in FILTERS}
    for kind, value, _count in rows:
        if value:
            found[kind].append(value)
    return [(kind, values[:_MOST_OFFERED]) for kind, values in found.items() if len(values) > 1]


def _newest_two(sides: Sequence[tuple[str, Sequence[int]]]) -> tuple[str, str] | None:
    """Return of sides with their runs, newest first, the first that shares a series with an older one, after
    the first such: 1 statement. A cancelled run counts as none."""
    rows = [(place, run) for place, (_side, runs) in enumerate(sides) for run in runs]
    places, runs = zip(*rows, strict=True) if rows else ((), ())
    pairs = fetch_tuples(
        """
        WITH member AS (
            SELECT m.* FROM unnest(%(places)s::int[], %(runs)s::int[]) AS m(place, run_id)
            JOIN hud_run r ON r.id = m.run_id AND r.state <> %(cancelled)s
        )
        SELECT * FROM (  -- in this order, so that the search ends with the first
            SELECT DISTINCT newer.place newer, older.place older
            FROM member newer JOIN member older ON older.place > newer.place ORDER BY 1, 2 OFFSET 0
        ) pair WHERE EXISTS (
            SELECT FROM member newer JOIN member older ON older.place = pair.older
            CROSS JOIN LATERAL (  -- OFFSET 0: one look-up in the index of runs for each
                SELECT series_id FROM hud_point
                WHERE run_id = newer.run_id AND value IS NOT NULL OFFSET 0) p
            CROSS JOIN LATERAL (
                SELECT FROM hud_point WHERE run_id = older.run_id AND series_id = p.series_id
                    AND value IS NOT NULL OFFSET 0) q
            WHERE newer.place = pair.newer
        ) LIMIT 1
        """,
        {"places": list(places), "runs": list(runs), "cancelled": State.CANCELLED},
    )
    return next(((sides[older][0], sides[newer][0]) for newer, older in pairs), None)
