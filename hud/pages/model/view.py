"""The page of a model: which of its backends, arches, modes and types moved, and where it is worst."""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString

from hud.models import Experiment, Point, Stream
from hud.pages import data, query_string, streams
from hud.pages.backends_table import colour
from hud.pages.model import drawing, query
from hud.pages.model.query import Combination, ModelPage
from hud.pages.sparkline import sparkline
from hud.points.columns import SuiteColumn
from hud.points.expectations import FAILING
from hud.points.nights import day
from hud.points.read import HEADER, rows_in_stream
from hud.problems import Problem
from hud.sql import fetch_models
from hud.tables.formatting import address, quantity
from hud.tables.html import dim, element, join, link, span
from hud.tables.table import Column, DataTable
from hud.templatetags.hud_tags import cell_html, path, verdict_badge

WINDOWS = (7, 28, 90)  # days
_MOST_NAMED = 3  # combinations in a sentence
_TONES = {"regressed": "worse", "improved": "better"}


def model(request: HttpRequest, suite: str, case: str, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.ModelFilters, request.GET, data_format)
    named = 'WHERE suite = %(suite)s AND "case" = %(case)s ORDER BY id'
    experiments = fetch_models(Experiment, named, {"suite": suite, "case": case})
    if not experiments:
        return _missing(request, suite, case, data_format)
    stream = streams.of_experiment(request, *(one.pk for one in experiments))
    page = query.read(stream, experiments, filters)
    if filters.metric and not (page.chosen and filters.metric in (page.chosen.key, *page.chosen.metrics)):
        complaints.append(f"metric: {filters.metric!r} was not measured")
    if data_format:
        return _as_data(page, stream, data_format, complaints)
    failed = [one.point for one in page.combinations if one.point.status_code in FAILING]
    known = sum(bool(point.known_failure) for point in failed)
    moved = [(word, [one for one in page.combinations if one.point.verdict == word]) for word in _TONES]
    context = {
        **drawing.panels(page.combinations),
        "page": page,
        "filters": filters,
        "windows": WINDOWS,
        "complaints": complaints,
        "moved": [(_TONES[word], len(found), _named(found)) for word, found in moved if found],
        "failed": len(failed) - known,
        "known": known,
        "tabs": [(one, sum(point.verdict == "regressed" for point in held)) for one, held in page.columns],
        "grid": _grid(page),
        "backends": [
            (colour(name), name) for name in dict.fromkeys(one.label.backend for one in page.combinations)
        ],
        "worst": WORST.html(_ranked(page), page, css="blocks", labelled_by="worst"),
    }
    streams.name_in_links(request)
    return render(request, "model/model.html", context)


def _missing(request: HttpRequest, suite: str, case: str, data_format: str) -> HttpResponse:
    """Answer that there is no such model, and which of the suite have a name like it."""
    if data_format:
        return data.missing(data_format, f"no case of {suite!r} is called {case!r}")
    streams.of_request(request)
    cases = list(Experiment.objects.filter(suite=suite).values_list("case", flat=True).distinct())
    context = {"suite": suite, "case": case, "alike": get_close_matches(case, cases, 6, 0.5), "cases": cases}
    return render(request, "model/missing.html", context, status=404)


def _as_data(page: ModelPage, stream: Stream, data_format: str, complaints: Sequence[str]) -> HttpResponse:
    """Return the newest points of all columns, those of the chosen one with their trend, and in JSON where each
    is worst."""
    if complaints:
        raise Problem(400, complaints[0])
    points = [point for _column, held in page.columns for point in held]
    trends = {one.point.series_id: one.trend for one in page.combinations}
    rows = rows_in_stream(points, stream)
    items = [{**row, "trend": trends.get(one.series_id)} for row, one in zip(rows, points, strict=True)]
    about = {
        "suite": page.suite,
        "case": page.case,
        "stream": stream.name,
        "worst": WORST.rows(_ranked(page)),
    }
    name = f"model-{page.suite}-{page.case}"
    return data.answer(data_format, name, items, (*HEADER, "trend"), **about)


def _to(point: Point, content: object, **values: str | None) -> SafeString:
    """Return a link to the experiment of a point at its metric."""
    return link(
        streams.link(address(point.experiment.pk, "experiment"), metric=point.metric.name), content, **values
    )


def _named(moved: Sequence[Combination]) -> SafeString:
    """Return those that moved farthest, each with since when."""
    shown = []
    for one in sorted(moved, key=lambda one: -abs(one.point.change or 0.0))[:_MOST_NAMED]:
        since = one.regression and link(
            streams.link(path("regressions"), open=one.regression.pk), f"since {day(one.regression.since)}"
        )
        shown.append(join(_to(one.point, str(one.label), css="strong"), verdict_badge(one.point), since))
    return join(*shown, f"and {len(moved) - len(shown)} more" if len(moved) > len(shown) else "", by=", ")


def _grid(page: ModelPage) -> SafeString:
    """Return a table with a row for each backend with its options, and a column for each place."""
    cells = {(one.label[:2], one.label[2:]): one for one in page.combinations}
    counts = Counter(arch for _row, (arch, _kind) in cells)
    places = sorted({place for _row, place in cells}, key=lambda place: (-counts[place[0]], place))

    def cell(place: tuple[str, str], row: tuple[str, str], _page: None) -> SafeString:
        return _cell(cells[row, place], page) if (row, place) in cells else dim("not measured")

    columns = [
        Column[tuple[str, str], None](
            "",
            join(element("b", arch), dim(kind)),
            draw=partial(cell, (arch, kind)),
            css="num",
            label=f"{arch}, {kind}",
        )
        for arch, kind in places
    ]
    head = Column[tuple[str, str], None](
        "", "Backend", draw=lambda row, _page: join(_key(row[0]), row[0], dim(row[1])), is_head=True
    )
    return DataTable(head, *columns).html(
        list(dict.fromkeys(row for row, _place in cells)), None, css="model blocks"
    )


def _key(backend: str) -> SafeString:
    number = colour(backend)
    return SafeString(f'<span class="key s{number}{"" if number else " none"}"></span>')


def _cell(one: Combination, page: ModelPage) -> SafeString:
    """Return the trend, the newest value with its badges, and the level that it is judged against."""
    point, tone = one.point, _TONES.get(one.point.verdict, "")
    since = one.regression.since if one.regression else point.order_time
    line = sparkline(
        [value for _time, value in one.trend],
        level=point.level,
        noise=point.noise,
        moved=sum(time >= since for time, _value in one.trend) if tone else 0,
        tone="better" if tone == "better" else "worse",
        size=(64, 18),
        crosses=True,
    )
    shown = _to(point, join(line, cell_html(point, with_unit=True)), css=tone)
    before = f"was {quantity(point.level, point.metric)}" if point.level is not None else ""
    return join(
        shown, span(join(page.chosen and page.chosen.metrics[point.metric.name], before), "sub faint")
    )


def _ranked(page: ModelPage) -> list[tuple[SuiteColumn, list[Point]]]:
    """Return the points of each column that may decide, of its most frequent metric with a direction, the worst
    first."""
    ranked = []
    for column, held in page.columns:
        able = [
            one
            for one in held
            if one.value is not None and not one.quality and one.metric.direction != "none"
        ]
        names = [one.metric.name for one in able]
        same = [one for one in able if one.metric.name == max(names, key=names.count)]
        same.sort(key=lambda one: (one.value or 0.0) * (-1 if one.metric.direction == "down" else 1))
        if len({one.value for one in same}) > 1:
            ranked.append((column, same))
    return ranked


def _worst(row: tuple[SuiteColumn, list[Point]], page: ModelPage) -> SafeString:
    point = row[1][0]
    value = _to(point, quantity(point.value, point.metric), css="strong")
    return join(value, span(str(page.labels[point.experiment.pk]), "sub dim"))


WORST = DataTable[tuple[SuiteColumn, list[Point]], ModelPage](
    Column("column", "Metric", lambda row: row[0].title, is_head=True),
    Column("value", "Worst", lambda row: row[1][0].value, draw=_worst),
    Column(
        "", "All, worst at the left", draw=lambda row, _page: drawing.marks([one.value for one in row[1]])
    ),
    "metric experiment",
    metric=lambda row: row[1][0].metric.name,
    experiment=lambda row: row[1][0].experiment.pk,
)
