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
from hud.judging.regressions.states import ACTIVE
from hud.models import Experiment, Stream
from hud.pages import data, query_string, streams
from hud.pages.query_string import MAX_ID
from hud.pages.query_string import words as text_field
from hud.pages.streams import link
from hud.sql import by_id, fetch_tuples
from hud.tables.table import DataTable
from runner.suites import SUITES

COLUMNS = DataTable(
    "kind title about url", about=lambda one: ", ".join(filter(None, (one.about, one.commit[:10])))
)
MOST = 12  # results of a kind
_MOST_WORDS = 8
_FEWEST_OF_HASH = 4
_BETWEEN_WORDS = re.compile(r"[\0\[\],]+")  # of a title such as layer_norm[D=4096,size=tiny]
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # which no address of a case has
_NAMES = 'e.suite, e."case", e.backend, e.mode, e.dtype, e.arch'


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
    number = _number(words)
    named, params = _named(words)
    params |= {
        "stream": stream.pk,
        "only": is_only,
        "active": list(ACTIVE),
        "most": MOST,
        "exact": _like(words[0]),
        "begins": f"{_like(words[0])}%",
        "run": number if words[0].lower() != "regression" else None,
        "regression": number if words[0].lower() != "run" else None,
    }
    measured = fetch_tuples(_CASES.format(named=named), params)
    cases = [row for row in measured if _can_be_address(row[0]) and not _CONTROL.search(row[1])]
    regressed = fetch_tuples(_REGRESSED.format(joins=JOINS, named=named), params)
    experiments = by_id(Experiment, [row[1] for row in regressed])
    begins = {f"begins{place}": f"{_like(word)}%" for place, word in enumerate(words)}
    runs = fetch_tuples(_RUNS.format(named=_each(words, _OF_RUN, _OF_COMMIT)), params | begins)
    hosts = fetch_tuples(_HOSTS.format(named=_each(words, "name ILIKE %(name{0})s")), params)
    kinds = [
        _results("case", cases, _case),
        _results("suite", _suites(words, stream, params), _suite),
        _results("regression", [(row[0], experiments[row[1]], *row[2:]) for row in regressed], _regression),
        _results("run", runs, _run),
        _results("host", hosts, lambda name, state: (name, state, reverse("hosts"))),
    ]
    if number is not None:  # an id is meant before a name that holds the same digits
        kinds.sort(key=lambda one: one.kind not in {"run", "regression"})
    return [one for one in kinds if one.found]


def _number(words: list[str]) -> int | None:
    """Return the id that is asked for: ``12``, ``run 12``, ``#12``."""
    text = words[-1].removeprefix("#").removeprefix("run:")
    if not (text.isascii() and text.isdigit() and len(text) < 11) or int(text) > MAX_ID:
        return None
    return int(text) if len(words) == 1 or words[0].lower() in {"run", "regression"} else None


def _like(text: str) -> str:
    """Return a pattern of LIKE for a text itself."""
    return re.sub(r"([\\%_])", r"\\\1", text)


def _named(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return SQL that an experiment `e` has each word in its name or options, as in ``size=tiny``."""
    texts, params = list[str](), dict[str, Any]()
    for place, word in enumerate(words):
        stored = word.replace("\\", "\\\\")  # as JSON
        name, _, value = stored.partition("=")
        options = [f'"{name}": {value}', f'"{name}": "{value}'] if value else [stored]
        params[f"name{place}"] = f"%{_like(word)}%"
        params[f"options{place}"] = [f"%{_like(text)}%" for text in options]
        texts.append(
            f"(concat_ws(E'\\n', {_NAMES}) ILIKE %(name{place})s"
            f" OR e.knobs::text ILIKE ANY(%(options{place})s))"
        )
    return " AND ".join(texts), params


# Cases, each with a stream that has results; closest first.
_CASES = """
    WITH matching AS MATERIALIZED (
        SELECT e.*, newest, stream, CASE WHEN is_own THEN 0 WHEN newest IS NULL THEN 2 ELSE 1 END AS rank,
            CASE WHEN "case" ILIKE %(exact)s THEN 0 WHEN "case" ILIKE %(begins)s THEN 1 ELSE 2 END AS close
        FROM hud_experiment e CROSS JOIN LATERAL (
            SELECT max(p.order_time) AS newest, bool_or(s.stream_id = %(stream)s) AS is_own,
                (array_agg(one.name ORDER BY one.id <> %(stream)s, p.order_time DESC))[1] AS stream
            FROM hud_series s JOIN hud_stream one ON one.id = s.stream_id CROSS JOIN LATERAL (
                SELECT order_time FROM hud_point WHERE series_id = s.id AND NOT rerun
                ORDER BY order_time DESC LIMIT 1
            ) p WHERE s.experiment_id = e.id
        ) points WHERE {named} AND (is_own OR NOT %(only)s)
    )
    SELECT suite, "case", count(*), array_agg(DISTINCT arch) FILTER (WHERE arch <> ''),
        (array_agg(stream ORDER BY rank, newest DESC NULLS LAST))[1], count(*) OVER () FROM matching
    GROUP BY suite, "case", close
    ORDER BY min(rank), close, max(newest) DESC NULLS LAST, length("case"), "case", suite LIMIT %(most)s
"""
_REGRESSED = """
    SELECT one.id, e.id, one.state, (SELECT title FROM hud_metric WHERE id = series.metric_id),
        (SELECT name FROM hud_stream WHERE id = series.stream_id), count(*) OVER ()
    FROM hud_regression one {joins}
    WHERE (one.id = %(regression)s OR one.state = ANY(%(active)s) AND {named})
        AND (series.stream_id = %(stream)s OR NOT %(only)s)
    ORDER BY series.stream_id <> %(stream)s, one.id DESC LIMIT %(most)s
"""

_RUNS = """
    SELECT id, title, host_name, order_time, commit, count(*) OVER () FROM hud_run
    WHERE (id = %(run)s OR {named}) AND (stream_id = %(stream)s OR NOT %(only)s)
    ORDER BY (id = %(run)s) IS TRUE DESC, stream_id <> %(stream)s, order_time DESC, id DESC LIMIT %(most)s
"""
_OF_RUN = "concat_ws(E'\\n', title, host_name, branch) ILIKE %(name{0})s"
_OF_COMMIT = "commit ILIKE %(begins{0})s"
_HOSTS = """
    SELECT name, CASE WHEN detached_at IS NULL THEN 'attached' ELSE 'detached' END, count(*) OVER ()
    FROM hud_host WHERE {named} ORDER BY id DESC LIMIT %(most)s
"""
# Each with a stream that has results of it, None where none has.
_SUITES = """
    SELECT suite, (
        SELECT name FROM hud_stream WHERE EXISTS (
            SELECT FROM hud_series s JOIN hud_experiment e ON e.id = s.experiment_id
            WHERE s.stream_id = hud_stream.id AND e.suite = one.suite)
        ORDER BY id <> %(stream)s, id LIMIT 1)
    FROM (SELECT DISTINCT suite FROM hud_experiment WHERE {named}) one
"""


def _each(words: Sequence[str], condition: str, of_hash: str = "false") -> str:
    """Return SQL that each word fits a condition, or one of hashes where it is long enough."""
    texts = [
        f"({condition} OR {of_hash if len(word) >= _FEWEST_OF_HASH else 'false'})".format(place)
        for place, word in enumerate(words)
    ]
    return " AND ".join(texts)


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


def _can_be_address(suite: str) -> bool:
    return bool(suite) and "/" not in suite and suite.isprintable()


def _suites(words: list[str], stream: Stream, params: dict[str, Any]) -> list[tuple[str, str | None, int]]:
    """Return the first suites whose names hold all words, each with a stream that has results of it and how
    many there are."""
    lower = [word.lower() for word in words]
    suites = dict.fromkeys(name for name in SUITES if all(word in name.lower() for word in lower))
    measured = fetch_tuples(_SUITES.format(named=_each(words, "suite ILIKE %(name{0})s")), params)
    own = measured if not params["only"] else [row for row in measured if row[1] == stream.name]
    streams_of = {name: stream for name, stream in (suites | dict(own)).items() if _can_be_address(name)}
    return [(name, streams_of[name], len(streams_of)) for name in sorted(streams_of)[:MOST]]


def _suite(name: str, stream: str | None) -> tuple[str, ...]:
    title = SUITES[name].title if name in SUITES else ""
    return name, title, link(reverse("suite", args=[name]), stream=stream)


def _regression(pk: int, one: Experiment, state: str, metric: str, stream: str) -> tuple[str, ...]:
    url = link(reverse("regressions"), stream=stream, open=pk)
    return f"{pk} {one.title}", f"{state}, {metric}, {one.backend}", url


def _run(pk: int, title: str, host: str, at: datetime, commit: str) -> tuple[str, ...]:
    about = ", ".join(filter(None, (title, host, f"{at:%-d %b %Y}")))
    return f"Run {pk}", about, reverse("run", args=[pk]), commit
