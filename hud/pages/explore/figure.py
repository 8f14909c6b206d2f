"""The chart as plotly draws it: one axis for each metric, one trace for each line."""

from datetime import timedelta
from html import escape
from typing import Any

import numpy as np
from django.utils.safestring import SafeString

from hud.models import Metric
from hud.pages.explore.lines import Line
from hud.pages.explore.query import ExplorePage
from hud.tables.formatting import unit
from hud.tables.html import NOTHING, json_block

_SCALES = {"ratio": (0.0, 100.0, "%"), "B": (0.0, 1e-9, "GB")}  # of stored units, as `drawn_unit`


def drawn_unit(page: ExplorePage, metric: Metric) -> tuple[float, float, str]:
    """Return what is added to a shown value, by what the sum is multiplied, and the unit of that."""
    relative = page.filters.relative
    if not relative:
        return _SCALES.get(metric.unit, (0.0, 1.0, unit(metric)))
    is_ratio = page.filters.scale == "log" or relative.startswith("backend:")
    return (0.0, 1.0, "×") if is_ratio else (-1.0, 100.0, "%")


def chart_html(page: ExplorePage) -> SafeString:
    """Return the data block of the figure, as plotly writes it. A test validates it, which here would take
    more than all else of the page."""
    if not page.lines:
        return NOTHING
    import plotly.io  # noqa: PLC0415  # like pandas

    names = list(dict.fromkeys(line.metric for line in page.lines))
    axes = {name: str(place or "") for place, name in enumerate(names, 1) if place > 1} | {names[0]: ""}
    is_grouped = any(line.name != line.group for line in page.lines)
    figure = {
        "data": [_trace(page, line, axes[line.metric], is_grouped=is_grouped) for line in page.lines],
        "layout": {
            "xaxis": _x_axis(page),
            **{
                f"yaxis{axes[name]}": _y_axis(page, page.metrics[name], place / len(names), 1 / len(names))
                for place, name in enumerate(reversed(names))
            },
            "hovermode": "x unified",
            "legend": {"groupclick": "toggleitem", "tracegroupgap": 6},
            "meta": [slot.night.names[0] for slot in page.slots],
        },
    }
    return json_block(plotly.io.to_json(figure, validate=False, remove_uids=False), "explore-figure")


def _trace(page: ExplorePage, line: Line, axis: str, *, is_grouped: bool) -> dict[str, Any]:
    metric = page.metrics[line.metric]
    added, factor, _unit = drawn_unit(page, metric)
    number, dash = page.styles[line.coloured_by]
    there = np.pad(np.isfinite(line.shown), 1)
    is_alone = (there[1:-1] & ~there[:-2] & ~there[2:]).any()
    absolute = "%{customdata:.4~g}  " if page.filters.relative else ""
    group = {"legendgroup": line.group, "legendgrouptitle": {"text": _text(line.group)}}
    return {
        "type": "scatter",
        "mode": "lines+markers" if is_alone else "lines",
        "uid": line.key,
        "name": _text(line.name),
        "x": [page.slots[place].label for place in line.slots.tolist()],
        "y": ((line.shown + added) * factor).astype("f4"),
        "customdata": line.values.astype("f4") if absolute else None,
        "yaxis": f"y{axis}",
        "line": {"width": 2.2 if line.moved else 1.3, "dash": dash},
        "marker": {"size": 4},
        "meta": number,
        "visible": "legendonly" if line.key in page.filters.hidden else True,
        "hovertemplate": f"%{{y:{'+.1f' if added else f',.{metric.precision}~f'}}}  {absolute}"
        "%{fullData.name}<extra></extra>",
        **(group if is_grouped else {}),
    }


def _text(name: str) -> str:
    """Return a name for plotly, which reads some HTML."""
    return escape(name if len(name) <= 60 else f"{name[:59]}…", quote=False)


def _x_axis(page: ExplorePage) -> dict[str, Any]:
    days = [slot.night.time.date() for slot in page.slots]
    start, end = page.filters.start or min(days), page.filters.end or max(days)
    zoomed = bool(page.filters.start or page.filters.end)
    if page.filters.x == "date":
        shown: dict[str, Any] = {"range": [str(start), str(end + timedelta(days=1))]} if zoomed else {}
        return {"type": "date", "unifiedhovertitle": {"text": "%{x|%-d %b %Y}"}, **shown}
    inside = [place for place, day in enumerate(days) if start <= day <= end] if zoomed else []
    shown = {"range": [inside[0] - 0.5, inside[-1] + 0.5]} if inside else {}
    labels = [slot.label for slot in page.slots]
    return {"type": "category", "categoryorder": "array", "categoryarray": labels, "nticks": 12, **shown}


def _y_axis(page: ExplorePage, metric: Metric, bottom: float, height: float) -> dict[str, Any]:
    added, _factor, unit_name = drawn_unit(page, metric)
    return {
        "title": {"text": _text(f"{metric.title}, {unit_name}" if unit_name else metric.title)},
        "type": page.filters.scale,
        "domain": [bottom, bottom + height - (0.05 if height < 1 else 0)],
        "tickformat": "+~g" if added else "~g",
    }
