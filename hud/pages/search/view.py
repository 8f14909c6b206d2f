"""Search: cases, suites, runs, hosts and regressions by words."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from hud.judging.regressions.read import JOINS
from hud.models import Experiment, Stream
from hud.pages import data, query_string, streams
from hud.pages.query_string import MAX_ID, OPTIONS
from hud.pages.query_string import words as text_field
from hud.pages.streams import link
from hud.sql import by_id, fetch_tuples
from hud.states.regressions import ACTIVE
from hud.tables.table import DataTable
from runner.suites import SUITES

COLUMNS = DataTable(
    "kind title about url", about=lambda row: ", ".join(filter(None, (row.about, row.commit[:10])))
)
MOST = 12  # results of a kind
_MOST_READ = 60  # cases whose points are read
_MOST_WORDS = 8
_FEWEST_OF_HASH = 4
_BETWEEN_WORDS = re.compile(r"[\0\[\],]+")  # of a title such as layer_norm[D=4096,size=tiny]
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # which no address of a case has


@dataclass(frozen=True)
class Result:
    kind: str
    title: str
    about: str
    url: str
    commit: str = ""  # of a run


@dataclass(frozen=True)
class KindResults:
    """The results of one kind, and how many there are."""

    kind: str
    found: list[Result]
    total: int


@dataclass(frozen=True)
class SearchFilters:
    q: str = text_field()


def search(request: HttpRequest, data_format: str = "") -> HttpResponse:
    asked, complaints = query_string.read(SearchFilters, request.GET, data_format)
    text = asked.q
    stream, is_only = streams.of_request(request), bool(request.GET.get("stream"))
    kinds = find(stream, text, is_only=is_only)
    if data_format:
        results = [result for kind in kinds for result in kind.found]
        totals = {kind.kind: kind.total for kind in kinds}
        return data.answer_table(data_format, "search", COLUMNS, results, q=text, totals=totals)
    only_stream = stream if is_only else None
    context = {"text": text, "kinds": kinds, "only_stream": only_stream, "complaints": complaints}
    return render(request, "search/search.html", context)


def find(stream: Stream, text: str, *, is_only: bool) -> list[KindResults]:
    """Return what matches all words: of the page's stream first, then the closest, then the newest, and last
    what was never measured; `is_only`: nothing of other streams. 6 statements, none for an empty text."""
    words = _BETWEEN_WORDS.sub(" ", text).split()[:_MOST_WORDS]
    if not words:
        return []
    number, texts = _number(words), [re.sub(r"([\\%_])", r"\\\1", word) for word in words]  # for LIKE
    params = {
        "stream": stream.pk,
        "only": is_only,
        "active": list(ACTIVE),
        "most": MOST,
        "exact": texts[0],
        "begins": f"{texts[0]}%",
        "words": [f"%{text}%" for text in texts],
        "hashes": [f"{text}%" if len(text) >= _FEWEST_OF_HASH else None for text in texts],
        "suites": list(SUITES),
        "run": number if words[0].lower() != "regression" else None,
        "regression": number if words[0].lower() != "run" else None,
    }
    cases = [row for row in fetch_tuples(_CASES, params) if _is_address(*row[:2])]
    suites = [row for row in fetch_tuples(_SUITES, params) if _is_address(row[0])]
    regressed = fetch_tuples(_REGRESSED, params)
    experiments = by_id(Experiment, [row[1] for row in regressed])
    kinds = [
        _results("case", cases, _case),
        _results("suite", [(*row, len(suites)) for row in suites[:MOST]], _suite),
        _results("regression", [(row[0], experiments[row[1]], *row[2:]) for row in regressed], _regression),
        _results("run", fetch_tuples(_RUNS, params), _run),
        _results("host", fetch_tuples(_HOSTS, params), lambda name, state: (name, state, reverse("hosts"))),
    ]
    if number is not None:  # an id is meant before a name that holds the same digits
        kinds.sort(key=lambda kind: kind.kind not in {"run", "regression"})
    return [kind for kind in kinds if kind.found]


def _number(words: list[str]) -> int | None:
    """Return the id that is asked for: ``12``, ``run 12``, ``#12``."""
    text = words[-1].removeprefix("#").removeprefix("run:")
    if not (text.isascii() and text.isdigit() and len(text) < 11) or int(text) > MAX_ID:
        return None
    return int(text) if len(words) == 1 or words[0].lower() in {"run", "regression"} else None


# That all words occur: in the names or options of an experiment `e`, as in size=tiny, and in those of a run,
# of whose commit a long word may be the beginning.
_NAMED = f"""concat_ws(E'\\n', e.suite, e."case", e.backend, e.mode, e.dtype, e.arch, {OPTIONS})
    ILIKE ALL(%(words)s::text[])"""
_RUN_NAMED = """(
    SELECT bool_and(
        concat_ws(E'\\n', title, host_name, branch) ILIKE word OR coalesce(commit ILIKE hash, false))
    FROM unnest(%(words)s::text[], %(hashes)s::text[]) asked(word, hash))"""

# Cases, each with a stream that has results; closest first. Of the many that a short word matches the points
# are read of a few, by which they are then ordered.
_CASES = f"""
    WITH named AS MATERIALIZED (
        SELECT id, suite, "case", arch,
            CASE WHEN "case" ILIKE %(exact)s THEN 0 WHEN "case" ILIKE %(begins)s THEN 1 ELSE 2 END AS close,
            EXISTS (SELECT FROM hud_series WHERE experiment_id = e.id AND stream_id = %(stream)s) AS is_own
        FROM hud_experiment e WHERE {_NAMED}
    ), matching AS MATERIALIZED (
        SELECT suite, "case", close, count(*) AS experiments, array_agg(id) AS ids, count(*) OVER () AS total,
            array_agg(DISTINCT arch) FILTER (WHERE arch <> '') AS arches
        FROM named WHERE is_own OR NOT %(only)s GROUP BY suite, "case", close
        ORDER BY NOT bool_or(is_own), close, length("case"), "case", suite LIMIT {_MOST_READ}
    )
    SELECT suite, "case", experiments, arches, stream, total FROM matching LEFT JOIN LATERAL (
        SELECT own.name AS stream, p.order_time AS newest, own.id <> %(stream)s AS is_other
        FROM hud_series s JOIN hud_stream own ON own.id = s.stream_id CROSS JOIN LATERAL (
            SELECT order_time FROM hud_point WHERE series_id = s.id AND NOT rerun
            ORDER BY order_time DESC LIMIT 1
        ) p WHERE s.experiment_id = ANY(ids) ORDER BY is_other, newest DESC LIMIT 1
    ) points ON true
    ORDER BY is_other NULLS LAST, close, newest DESC NULLS LAST, length("case"), "case", suite LIMIT %(most)s
"""  # noqa: S608 — constants  # nosec B608
_REGRESSED = f"""
    SELECT own.id, e.id, own.state, (SELECT title FROM hud_metric WHERE id = series.metric_id),
        (SELECT name FROM hud_stream WHERE id = series.stream_id), count(*) OVER ()
    FROM hud_regression own {JOINS}
    WHERE (own.id = %(regression)s OR own.state = ANY(%(active)s) AND {_NAMED})
        AND (series.stream_id = %(stream)s OR NOT %(only)s)
    ORDER BY series.stream_id <> %(stream)s, own.id DESC LIMIT %(most)s
"""  # noqa: S608 — constants  # nosec B608
_RUNS = f"""
    SELECT id, title, host_name, order_time, commit, count(*) OVER () FROM hud_run
    WHERE (id = %(run)s OR {_RUN_NAMED}) AND (stream_id = %(stream)s OR NOT %(only)s)
    ORDER BY (id = %(run)s) IS TRUE DESC, stream_id <> %(stream)s, order_time DESC, id DESC LIMIT %(most)s
"""  # noqa: S608 — constants  # nosec B608
_HOSTS = """
    SELECT name, CASE WHEN detached_at IS NULL THEN 'attached' ELSE 'detached' END, count(*) OVER ()
    FROM hud_host WHERE name ILIKE ALL(%(words)s::text[]) ORDER BY id DESC LIMIT %(most)s
"""
# Each with a stream that has results of it, None where none has or none of the stream alone that is meant.
_SUITES = """
    SELECT suite, CASE WHEN stream.id = %(stream)s OR NOT %(only)s THEN stream.name END FROM (
        SELECT DISTINCT suite FROM hud_runsubject UNION SELECT unnest(%(suites)s::text[])
    ) own LEFT JOIN LATERAL (
        SELECT id, name FROM hud_stream WHERE EXISTS (
            SELECT FROM hud_runsubject WHERE stream_id = hud_stream.id AND suite = own.suite)
        ORDER BY id <> %(stream)s, id LIMIT 1
    ) stream ON true
    WHERE suite ILIKE ALL(%(words)s::text[])
        AND (stream.id = %(stream)s OR NOT %(only)s OR suite = ANY(%(suites)s))
    ORDER BY suite COLLATE "C"
"""


def _results(
    kind: str, rows: Sequence[tuple[Any, ...]], shown: Callable[..., tuple[str, ...]]
) -> KindResults:
    """Return results of a kind: `shown` returns what is shown of a row. Rows end with how many there are."""
    return KindResults(kind, [Result(kind, *shown(*row[:-1])) for row in rows], rows[0][-1] if rows else 0)


def _case(
    suite: str, case: str, experiments: int, arches: list[str] | None, stream: str | None
) -> tuple[str, ...]:
    about = f"{suite}, {experiments} experiment{'s' if experiments > 1 else ''}"
    about += f" on {', '.join(arches)}" if arches else ""
    return case, about, link(reverse("model", args=[suite, case]), stream=stream)


def _is_address(suite: str, case: str = "") -> bool:
    return bool(suite) and "/" not in suite and suite.isprintable() and not _CONTROL.search(case)


def _suite(name: str, stream: str | None) -> tuple[str, ...]:
    title = SUITES[name].title if name in SUITES else ""
    return name, title, link(reverse("suite", args=[name]), stream=stream)


def _regression(pk: int, experiment: Experiment, state: str, metric: str, stream: str) -> tuple[str, ...]:
    url = link(reverse("regressions"), stream=stream, open=pk)
    return f"{pk} {experiment.title}", f"{state}, {metric}, {experiment.backend}", url


def _run(pk: int, title: str, host: str, at: datetime, commit: str) -> tuple[str, ...]:
    about = ", ".join(filter(None, (title, host, f"{at:%-d %b %Y}")))
    return f"Run {pk}", about, reverse("run", args=[pk]), commit
