"""Explore: a chart and a table of any series, in an address that has all of it."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.pages import data, query_string, streams
from hud.pages.explore import query
from hud.pages.explore.figure import chart_html, drawn_unit
from hud.pages.explore.filters import DIMENSIONS, NIGHTS, ExploreFilters
from hud.pages.explore.lines import Line, ends
from hud.pages.explore.query import ExplorePage
from hud.pages.query_string import select
from hud.pages.tags import verdict_badge
from hud.points.streams import with_results
from hud.problems import Problem
from hud.sql import Floats
from hud.tables.formatting import NONE, address, magnitude, number, quantity, signed_percent
from hud.tables.html import NOTHING, dim, element, join, link, span, text
from hud.tables.table import Column, DataTable

_MOVED = {"regressed": "worse", "failed": "worse", "improved": "better"}


def _address(filters: ExploreFilters, **changed: Any) -> str:
    """Return the address of a page, without what is usual."""
    given = {(one.metadata["names"] or (one.name,))[0]: getattr(filters, one.name) for one in fields(filters)}
    usual = ExploreFilters().__dict__
    shown = {name: value for name, value in (given | changed).items() if value and value != usual.get(name)}
    return f"?{urlencode(shown, doseq=True)}"


def _name(line: Line, page: ExplorePage) -> SafeString:
    colour, dash = page.styles[line.coloured_by]
    swatch = element("span", "", css=f"key s{colour} {dash}")
    if line.row is None:
        return join(swatch, line.name, dim(f"mean of {line.series} series"))
    about = {"stream": line.row.of("stream"), "metric": line.metric}
    experiment = link(streams.link(address(line.row.experiment, "experiment"), **about), line.name)
    return join(swatch, experiment, dim(line.group if line.group != line.name else ""))


def _ends(line: Line, page: ExplorePage) -> object:
    metric, values = page.metrics[line.metric], ends(line.values)
    if not values:
        return NONE
    return join(number(values[0], metric), "→", element("b", quantity(values[1], metric)))


def _change(line: Line) -> float | None:
    values = ends(line.values)
    return values[1] / values[0] - 1 if values and values[0] else None


def _shown(line: Line, page: ExplorePage) -> str:
    if not (shown := ends(line.shown)):
        return NONE
    added, factor, unit = drawn_unit(page, page.metrics[line.metric])
    return f"{(shown[1] + added) * factor:{'+.1f' if added else '.3f'}} {unit}".replace("-", "−")


def _times_noise(line: Line) -> str:
    noise, change = line.point and line.point.noise, _change(line)
    return magnitude(change / noise) if noise and change is not None else NONE


def _since(line: Line, _page: ExplorePage) -> SafeString:
    if not line.regression or not line.row:
        return NOTHING
    about = {"stream": line.row.of("stream"), "open": line.regression.pk}
    return link(streams.link(reverse("regressions"), **about), f"{line.regression.since:%-d %b}")


def _is_relative(page: ExplorePage) -> bool:
    return bool(page.filters.relative)


def _of_series(page: ExplorePage) -> bool:
    return page.filters.line == "series"


SERIES = DataTable[Line, ExplorePage](
    Column("name", "Series", draw=_name, is_head=True),
    "group series metric first",
    Column("newest", "First → newest", lambda line: (ends(line.values) or [None])[-1], draw=_ends, css="num"),
    Column("change", "Change", _change, show=signed_percent, css="num strong", label="change"),
    Column("shown", "As drawn", lambda line: (ends(line.shown) or [None])[-1], draw=_shown, css="num",
           only=_is_relative),
    Column("", "× noise", _times_noise, css="num", label="× noise", tooltip="of the series", only=_of_series),
    Column("verdict", "Verdict", "point?.verdict", tooltip="of the newest result", only=_of_series,
           draw=lambda line, _page: verdict_badge(line.point) if line.point and line.point.verdict else ""),
    Column("since", "Moved", "regression?.since", draw=_since, only=_of_series),
    Column("failed", "Failed", lambda line: int(np.isnan(line.values).sum()), show=lambda count: count or "",
           css="num", label="failed"),
    first=lambda line: (ends(line.values) or [None])[0],
)  # fmt: skip
POINTS = (*DIMENSIONS, "series", "unit", "night", "commit", "x", "run", "value", "shown", "decides")


def _numbers(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _points(page: ExplorePage) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of the chart."""
    for line in page.lines:
        known = {page.filters.group: line.group, "metric": line.metric}
        about = dict(zip(DIMENSIONS, line.row.names, strict=True)) if line.row else known
        same = [*map(about.get, DIMENSIONS), line.series, page.metrics[line.metric].unit]
        columns = line.slots.tolist(), line.runs.tolist(), line.decides.tolist()
        for place, run, decides, *values in zip(
            *columns, _numbers(line.values), _numbers(line.shown), strict=True
        ):
            night = page.slots[place].night
            own = [night.names[0], night.commit, page.slots[place].label, run if line.row else None]
            yield dict(zip(POINTS, [*same, *own, *values, bool(decides)], strict=True))


def _facet(page: ExplorePage, name: str) -> SafeString:
    """Return what chooses names of a dimension: boxes in a panel that opens."""
    offered, chosen = list(page.offered[name].items()), getattr(page.filters, name)
    if len(offered) < 2:
        hidden = (f'<input type="hidden" name="{name}" value="{text(each)}">' for each in chosen)
        return SafeString("".join(hidden))
    boxes = "".join(
        f'<label><input type="checkbox" name="{name}" value="{text(each)}"'
        f"{' checked' if each in chosen else ''}>{text(each)} {span(count or '', 'faint')}</label>"
        for each, count in offered[: query.MOST_OFFERED]
    )
    is_cut = len(offered) > query.MOST_OFFERED or (name == "case" and page.has_more_cases)
    more = "and more" if is_cut else ""
    of = f"over {query.MOST_OFFERED}" if is_cut else len(offered)
    summary = chosen[0] if len(chosen) == 1 else f"{len(chosen) or 'all'} of {of}"
    others = _address(page.filters, **{name: ()})
    return SafeString(
        f'<span class="facet{" chosen" if chosen else ""}"><details class="menu" name="facet">'
        f'<summary><b>{name}</b> {text(summary)}</summary><div class="menu-body">{boxes}{dim(more)}'
        f'<button class="primary">Show</button></div></details>'
        f"{link(others, '×', css='clear', aria_label=f'Any {name}') if chosen else ''}</span>"
    )


def _pickers(page: ExplorePage) -> SafeString:
    filters, several = page.filters, len(page.backends) > 1
    nights = dict.fromkeys(slot.night.names[0] for slot in reversed(page.slots))
    relative = [("", "absolute"), ("first", "first night")]
    relative += [(f"backend:{name}", f"backend {name}") for name in page.backends if several]
    relative += [(f"night:{night}", f"night {night}") for night in nights]
    return join(
        select("Colour", "colour", filters.colour, DIMENSIONS),
        select("Group", "group", filters.group, DIMENSIONS),
        select("Line for", "line", filters.line, [("series", "each series"), ("mean", "mean of a group")]),
        select("Relative to", "relative", filters.relative, relative),
        select("By", "x", filters.x, ("date", "commit", "torch")),
        select("Scale", "scale", filters.scale, ("linear", "log")),
        select("Newest", "nights", filters.nights, [(count, f"{count} nights") for count in NIGHTS]),
    )


def explore(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(ExploreFilters, request.GET, data_format)
    page = query.read(filters, streams.of_request(request))
    if data_format and page.complaints:
        raise Problem(400, page.complaints[0])
    verdicts = {line.key: line.point.verdict for line in page.lines if line.point}
    factors = {line.key: abs(line.point.factor or 0.0) for line in page.lines if line.point}
    in_order = sorted(  # what moved or failed first
        page.lines, key=lambda line: (verdicts.get(line.key) not in _MOVED, -factors.get(line.key, 0.0))
    )
    if data_format:
        about = {"stream": page.stream.name, "left_out": page.left_out, "without_base": page.without_base}
        rows, series = list(_points(page)), SERIES.rows(in_order)
        return data.answer(data_format, "explore", rows, POINTS, **about, series=series)
    page.offered["stream"] |= Counter({each.name: 0 for each in with_results(streams.listed(request))})
    counts = Counter(verdicts.values())
    context = {
        "page": page,
        "facets": join(*(_facet(page, name) for name in DIMENSIONS)),
        "pickers": _pickers(page),
        "figure": chart_html(page),
        "table": SERIES.html(in_order, page, css="blocks"),
        "counts": [(counts[name], name, tone) for name, tone in _MOVED.items() if counts[name]],
        "none": query_string.none_matches(streams.link(reverse("explore")), "No series"),
        "query": f"?{request.GET.urlencode()}" if request.GET else "",
        "complaints": complaints + page.complaints,
    }
    return render(request, "explore/explore.html", context)
