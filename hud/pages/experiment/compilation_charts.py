"""The figure of compilations: one mark each, beside its neighbours of the same point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import plotly.graph_objects as go

from hud.models import Metric
from hud.pages.experiment.charts import BETTER, NEUTRAL, Figure, axis_title, escape
from hud.pages.experiment.compilations import Mark

# Okabe-Ito's colours in its order, each with a shape of its own: the shape tells them apart without colour.
_LOOKS = (
    ("#0072B2", "circle"),
    ("#D55E00", "diamond"),
    ("#009E73", "triangle-up"),
    ("#CC79A7", "cross"),
    ("#56B4E9", "square"),
    ("#E69F00", "hexagon"),
    ("#808000", "star"),
    ("#5b3d8a", "triangle-down"),
)
_OTHER = ("#8a94a0", "x")
_MOST_TICKS = 6
_LAYOUT = go.Layout(
    margin={"l": 64, "r": 16, "t": 16, "b": 40},
    hovermode="closest",
    legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    xaxis={"automargin": True, "zeroline": False},
    yaxis={"automargin": True, "zeroline": False},
).to_plotly_json()
_MARKERS = go.Scatter(mode="markers", hovertemplate="%{text}<extra></extra>").to_plotly_json()
_STEMS = go.Scatter(
    mode="lines", line={"color": "#8a94a0", "width": 1}, hoverinfo="skip", showlegend=False
).to_plotly_json()


def of_kernel(marks: Sequence[Mark], metric: Metric) -> Figure:
    """Return the metric of each compilation, shaped by its configuration; a line joins those of one point."""
    drawn = [mark for mark in marks if mark.value is not None]
    places = dict(zip(map(_key, drawn), _places(drawn), strict=True))
    counts = Counter(mark.variant for mark in drawn)
    looks = dict(zip((variant for variant, _n in counts.most_common()), _LOOKS, strict=False))
    lines: Figure = {"x": [], "y": []}
    for _run, group in groupby(drawn, key=lambda mark: mark.run):
        found = sorted(group, key=lambda mark: mark.value or 0.0)
        lines["x"] += [*(places[_key(mark)] for mark in found), None]
        lines["y"] += [*(mark.value for mark in found), None]
    traces = [{**_STEMS, **lines}]
    for variant, n in counts.most_common():
        found = [mark for mark in drawn if mark.variant == variant]
        colour, symbol = looks.get(variant, _OTHER)
        name = f"{found[0].config or variant[:7]} ({n})"
        texts = [_hover(mark, f"{mark.value:.{metric.precision}f} {metric.unit}") for mark in found]
        trace = _trace(found, places, [mark.value for mark in found], texts)
        marker = {"color": colour, "symbol": symbol, "size": 10}
        traces.append({**trace, "name": escape(name), "marker": marker, "showlegend": variant in looks})
    layout = {**_LAYOUT, "xaxis": _axis(drawn, places), "yaxis": {"title": {"text": axis_title(metric)}}}
    return {"data": traces, "layout": layout}


def of_model(marks: Sequence[Mark]) -> Figure:
    """Return the busy time of each compilation with the time that its choices have in history, and below it
    their ratio."""
    drawn = [mark for mark in marks if mark.busy_us is not None]
    places = dict(zip(map(_key, drawn), _places(drawn), strict=True))
    known = [mark for mark in drawn if mark.same_choice is not None]
    scale, unit = (1e3, "ms") if max(mark.busy_us or 0.0 for mark in drawn) >= 1e3 else (1.0, "µs")
    stems: Figure = {"x": [], "y": []}
    for mark in known:
        stems["x"] += [places[_key(mark)]] * 2 + [None]
        stems["y"] += [(mark.expected_us or 0.0) / scale, (mark.busy_us or 0.0) / scale, None]
    texts = [_hover(mark, f"{(mark.busy_us or 0.0) / scale:.4g} {unit}") for mark in drawn]
    measured = _trace(drawn, places, [(mark.busy_us or 0.0) / scale for mark in drawn], texts)
    traces = [{**measured, "name": "compilation", "marker": {"color": BETTER, "size": 8}}]
    layout = {
        **_LAYOUT,
        "xaxis": _axis(drawn, places),
        "yaxis": {
            "title": {"text": f"GPU busy time, {unit}"},
            "domain": [0.36, 1.0] if known else [0.0, 1.0],
        },
    }
    if known:
        expected = _trace(known, places, [(mark.expected_us or 0.0) / scale for mark in known], [])
        tick = {"symbol": "line-ew-open", "size": 10, "color": "#6b7580", "line": {"width": 2}}
        about = {"hoverinfo": "skip", "hovertemplate": None, "name": "expected from its choices"}
        ratios = [100 * ((mark.same_choice or 1.0) - 1) for mark in known]
        ratio_texts = [
            _hover(mark, f"same choice {ratio:+.2f} %") for mark, ratio in zip(known, ratios, strict=True)
        ]
        below = {"marker": {"color": NEUTRAL, "size": 7}, "name": "same-choice time", "yaxis": "y2"}
        traces = [
            {**_STEMS, **stems},
            {**expected, **about, "marker": tick},
            *traces,
            {**_trace(known, places, ratios, ratio_texts), **below},
        ]
        layout["yaxis2"] = {"title": {"text": "same choice, %"}, "domain": [0.0, 0.26], "zeroline": True}
    return {"data": traces, "layout": layout}


def _key(mark: Mark) -> tuple[int, int, str]:
    return mark.run, mark.repeat, mark.order_time.isoformat()


def _places(marks: Sequence[Mark]) -> list[float]:
    """Return the place of each mark: one unit a point, its compilations side by side."""
    places = []
    for place, (_run, group) in enumerate(groupby(marks, key=lambda mark: mark.run)):
        found = list(group)
        step = 0.6 / len(found)
        places += [place + step * (number - (len(found) - 1) / 2) for number in range(len(found))]
    return places


def _axis(marks: Sequence[Mark], places: dict[tuple[int, int, str], float]) -> Figure:
    """Return an axis that is even by point, with the dates of some."""
    firsts = [next(group) for _run, group in groupby(marks, key=lambda mark: mark.run)]
    step = -(-len(firsts) // _MOST_TICKS) or 1
    ticks = range(0, len(firsts), step)
    return {
        **_LAYOUT["xaxis"],
        "tickvals": list(ticks),
        "ticktext": [
            f"{firsts[place].order_time:%-d %b}<br>{escape(firsts[place].commit[:7])}" for place in ticks
        ],
        "range": [-0.6, len(firsts) - 0.4],
        "anchor": "y2" if any(mark.same_choice is not None for mark in marks) else "y",
    }


def _trace(
    marks: Sequence[Mark],
    places: dict[tuple[int, int, str], float],
    values: Sequence[Any],
    texts: Sequence[str],
) -> Figure:
    return {
        **_MARKERS,
        "x": [places[_key(mark)] for mark in marks],
        "y": list(values),
        "text": list(texts),
        "customdata": [f"#run-{mark.run}" for mark in marks],
    }


def _hover(mark: Mark, value: str) -> str:
    expected = ""
    if mark.expected_us is not None and mark.same_choice is not None:
        above = 100 * (mark.same_choice - 1)
        expected = f"expected from its choices {mark.expected_us / 1e3:.4g} ms, {above:+.2f} %"
    lines = [
        f"<b>{escape(value)}</b>",
        escape(mark.config),
        expected,
        f"choices {mark.variant[:7]}, {mark.kernels} kernel{'' if mark.kernels == 1 else 's'}",
        escape(" · ".join(filter(None, (f"{mark.order_time:%Y-%m-%d}", mark.commit[:7], mark.host)))),
        f"run {mark.run}, compilation {mark.number}",
    ]
    return "<br>".join(line for line in lines if line)
