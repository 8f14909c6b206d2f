"""The page of a model: which of its backends, arches, modes and types are worse, and where it is worst."""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString

from hud.models import Experiment, Point
from hud.pages import data, query_string, streams
from hud.pages.backends_table import colour
from hud.pages.model import drawing, query
from hud.pages.model.query import Combination, ModelPage, Place, Ranking, Setup
from hud.pages.sparkline import sparkline
from hud.points.read import HEADER, rows_in_stream
from hud.problems import Problem
from hud.sql import from_epoch_us
from hud.tables.formatting import address, quantity
from hud.tables.html import dim, element, join, link, span
from hud.tables.table import Column, DataTable
from hud.templatetags.hud_tags import cell_html, verdict_badge

_MOST_NAMED = 3  # combinations in a sentence
_TONES = {"regressed": "worse", "improved": "better"}


def model(request: HttpRequest, suite: str, case: str, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.ModelFilters, request.GET, data_format)
    experiments = query.experiments_of(suite, case)
    if not experiments:
        return _missing(request, suite, case, data_format)
    stream = streams.of_experiment(request, *(one.pk for one in experiments))
    page = query.read(stream, experiments, filters)
    chosen = page.chosen
    if filters.metric and not (chosen and filters.metric in (chosen.key, *chosen.metrics)):
        complaints.append(f"metric: {filters.metric!r} was not measured")
    if data_format and complaints:
        raise Problem(400, complaints[0])
    if data_format:
        return _as_data(page, data_format)
    worse, better = (page.with_verdict(word) for word in _TONES)
    context = {
        **drawing.panels(page),
        "page": page,
        "days": filters.days,
        "windows": query.WINDOWS,
        "complaints": complaints,
        "worse": worse,
        "worse_named": _named(worse),
        "better": better,
        "better_named": _named(better),
        "failing": page.failing(known=False),
        "known": page.failing(known=True),
        "tabs": [(column, len(page.with_verdict("regressed", column.key))) for column in page.columns],
        "grid": _grid(page.places).html(page.setups, page, empty="No results.", css="model blocks"),
        "legend": [(colour(name), name) for name in dict.fromkeys(one.backend for one in page.setups)],
        "rankings": RANKINGS.html(page.rankings, page, css="blocks"),
    }
    streams.name_in_links(request)
    return render(request, "model/model.html", context)


def _missing(request: HttpRequest, suite: str, case: str, data_format: str) -> HttpResponse:
    """Answer that there is no such model, with those whose names are alike: 2 statements."""
    if data_format:
        return data.missing(data_format, f"no case of {suite!r} is called {case!r}")
    streams.of_request(request)
    cases = list(Experiment.objects.filter(suite=suite).values_list("case", flat=True).distinct())
    alike = get_close_matches(case, cases, n=6, cutoff=0.5)
    context = {"suite": suite, "case": case, "alike": alike, "has_suite": bool(cases)}
    return render(request, "model/missing.html", context, status=404)


def _as_data(page: ModelPage, data_format: str) -> HttpResponse:
    """Return the newest point of every column, those of the chosen one with their trend."""
    trends = {
        one.shown.series_id: [(from_epoch_us(time), value) for time, value in one.trend]
        for one in page.combinations
        if one.shown
    }
    rows = rows_in_stream(page.points, page.stream)
    items = [
        {**row, "trend": trends.get(point.series_id)} for row, point in zip(rows, page.points, strict=True)
    ]
    return data.answer(
        data_format,
        f"model-{page.suite}-{page.case}",
        items,
        (*HEADER, "trend"),
        suite=page.suite,
        case=page.case,
        stream=page.stream.name,
        metric=page.chosen and page.chosen.key,
        worst=RANKINGS.rows(page.rankings),
    )


def _address(one: Combination, point: Point) -> str:
    return streams.link(address(one.experiment.pk, "experiment"), metric=point.metric.name)


def _named(combinations: Sequence[Combination]) -> SafeString:
    """Return the first combinations with their changes, as links; '' without any."""
    links = [
        join(
            link(_address(one, one.shown), one.name, css=f"strong {_TONES[one.verdict]}"),
            verdict_badge(one.shown),
            one.regression and join("since", one.regression.since.strftime("%-d %b")),
        )
        for one in combinations[:_MOST_NAMED]
        if one.shown
    ]
    more = len(combinations) - len(links)
    return join(*links, f"and {more} more" if more else "", by=", ") if links else SafeString("")


def _grid(places: Sequence[Place]) -> DataTable[Setup, ModelPage]:
    """Return the table of setups, with a column for each place."""
    columns = [
        Column[Setup, ModelPage](
            "",
            join(element("b", place.name), dim(place.kind)),
            draw=partial(_cell, place),
            css="num",
            label=", ".join(filter(None, (place.name, place.kind))),
        )
        for place in places
    ]
    return DataTable(Column("", "Backend", draw=_head, is_head=True), *columns)


def _head(setup: Setup, _page: ModelPage) -> SafeString:
    number = colour(setup.backend)
    key = f'<span class="key s{number}{"" if number else " none"}"></span>'
    options = ", ".join(filter(None, (setup.options, "dynamic shapes" if setup.dynamic else "")))
    return join(join(SafeString(key), setup.backend or "backend unknown", by=""), dim(options))


def _cell(place: Place, setup: Setup, page: ModelPage) -> SafeString:
    one = page.grid.get((setup, place))
    if one is None or one.shown is None or page.chosen is None:
        return dim("not measured")
    point, tone = one.shown, _TONES.get(one.verdict, "")
    since = one.regression.since if one.regression and tone == "worse" else point.order_time
    values = [value for _time, value in one.trend]
    line = sparkline(
        values,
        level=point.level,
        noise=point.noise,
        moved=sum(from_epoch_us(time) >= since for time, _value in one.trend) if tone else 0,
        tone="better" if tone == "better" else "worse",
        size=(64, 18),
        crosses=True,
    )
    before = f"was {quantity(point.level, point.metric)}" if point.level is not None else ""
    mark = page.chosen.metrics[point.metric.name]
    shown = link(_address(one, point), join(line, cell_html(point, with_unit=True)), css=tone)
    return join(shown, span(join(mark, before), "sub faint"))


def _worst(ranking: Ranking, _page: ModelPage) -> SafeString:
    point, one = ranking.points[0], ranking.ranked[0]
    value = link(_address(one, point), quantity(point.value, point.metric), css="strong")
    return join(value, span(one.name, "sub dim"))


def _farthest(ranking: Ranking, _page: ModelPage) -> SafeString | None:
    if ranking.moved is None:
        return None
    point = ranking.moved.points[ranking.column.key]
    badge = link(_address(ranking.moved, point), verdict_badge(point))
    return join(badge, span(ranking.moved.name, "sub dim"))


RANKINGS = DataTable[Ranking, ModelPage](
    Column("column", "Metric", "column.title", is_head=True),
    Column("value", "Worst", lambda one: one.values[0], draw=_worst, label="worst"),
    Column(
        "median", "Median", draw=lambda one, _page: quantity(one.median, one.points[0].metric), label="median"
    ),
    Column("", "All, worst at the left", draw=lambda one, _page: drawing.marks(one.values)),
    Column("change", "Farthest from its level", draw=_farthest, label="farthest from its level"),
    "metric experiment moved_experiment",
    metric=lambda ranking: ranking.points[0].metric.name,
    experiment=lambda ranking: ranking.ranked[0].experiment.pk,
    moved_experiment=lambda ranking: ranking.moved and ranking.moved.experiment.pk,
)
