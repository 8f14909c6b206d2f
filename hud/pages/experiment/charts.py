"""Plotly figures as plain dicts. `charts.js` adds the colours of text, grid and paper.

Plotly's classes check layouts and looks once, at import; points are inserted as lists, since checking a whole
history of 200 points takes 14 ms.

Okabe-Ito's colour-blind palette: blue is better, orange is worse, and every verdict has its own symbol. Only
SVG traces: the WebGL ones need `unsafe-eval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import plotly.graph_objects as go

from hud.models import Metric
from hud.pages.experiment.query import History, Point
from hud.templatetags.hud_tags import better
from runner.schema.statistics import ValueRule, value_of

Figure = dict[str, Any]

BETTER, WORSE, NEUTRAL, FAILED, TARGET = "#0072B2", "#D55E00", "#56B4E9", "#CC79A7", "#009E73"
# Verdict → (name in the legend, colour, symbol). The order is the legend's.
_LOOKS = {
    "improved": ("improved", BETTER, "triangle-up"),
    "regressed": ("regressed", WORSE, "triangle-down"),
    "unchanged": ("unchanged", NEUTRAL, "circle"),
    "inconclusive": ("inconclusive", "#E69F00", "diamond"),
    "new": ("new", NEUTRAL, "star"),
    "": ("not judged yet", NEUTRAL, "circle-dot"),
    "in_pairs": ("A/B comparison", NEUTRAL, "square"),
    "failed": ("failed", FAILED, "x"),
    "not_run": ("not run", FAILED, "circle-x-open"),
}
_SHOWN_SAMPLES = 1000

_TEMPLATE = go.layout.Template(
    layout={
        "margin": {"l": 64, "r": 16, "t": 16, "b": 40},
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {"automargin": True},
        "yaxis": {"automargin": True},
    }
)
_HISTORY = go.Layout(
    template=_TEMPLATE,
    xaxis={"type": "date"},
    yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    showlegend=True,
).to_plotly_json()
_SAMPLES = go.Layout(template=_TEMPLATE, showlegend=False).to_plotly_json()
_LINE = go.Scatter(
    mode="lines", line={"color": NEUTRAL, "width": 1}, opacity=0.6, hoverinfo="skip", showlegend=False
).to_plotly_json()
_MARKERS = go.Scatter(mode="markers", hovertemplate="%{text}<extra></extra>").to_plotly_json()
_SAMPLE = go.Scatter(
    mode="markers", name="sample", marker={"color": NEUTRAL, "size": 5, "opacity": 0.8}
).to_plotly_json()
_ACROSS = go.layout.Shape(type="line", xref="paper", x0=0, x1=1).to_plotly_json()
_LABEL = go.layout.Annotation(
    xref="paper", x=1, xanchor="right", yanchor="bottom", showarrow=False
).to_plotly_json()


def escape(text: str) -> str:
    """Escape HTML, which Plotly renders in labels: a name must not become a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def history(shown: History) -> Figure:
    """Return the values of a series over time, with the spread of their samples and the arch's target."""
    present = [point for point in shown.points if point.median is not None]
    missing = [point for point in shown.points if point.median is None]
    traces: list[Figure] = []
    if len(present) > 1:
        times = [point.order_time.isoformat() for point in present]
        traces.append({**_LINE, "x": times, "y": [point.median for point in present]})
    for verdict, (name, colour, symbol) in _LOOKS.items():
        group = [point for point in present if point.verdict == verdict]
        opened = symbol if symbol.endswith(("-open", "-dot")) else f"{symbol}-open"
        for same_class, suffix, shape in ((True, "", symbol), (False, ", different environment", opened)):
            points = [point for point in group if point.same_class is same_class]
            if points:
                marker = {"symbol": shape, "line": {"width": 1.5, "color": colour}}
                spreads = [abs((point.spread or 0.0) * (point.median or 0.0)) for point in points]
                bars = {"type": "data", "array": spreads, "visible": any(spreads)}
                trace = _markers(points, shown.metric, name + suffix, {"color": colour, **marker})
                trace["y"] = [point.median for point in points]
                traces.append({**trace, "error_y": {**bars, "thickness": 1.5, "width": 4}})
    if missing:  # at the foot of the chart, so that nobody takes them for absent
        trace = _markers(missing, shown.metric, "no value", {"color": FAILED, "symbol": "x"})
        traces.append({**trace, "y": [0.03] * len(missing), "yaxis": "y2"})
    layout: Figure = {
        **_HISTORY,
        "xaxis": {**_HISTORY["xaxis"], "range": _time_range([point.order_time for point in shown.points])},
        "yaxis": {"title": {"text": axis_title(shown.metric)}, "range": _value_range(shown, present)},
    }
    if shown.target:
        value = shown.target.value
        layout["shapes"] = [_line_across(value, {"color": TARGET, "width": 2, "dash": "dash"})]
        layout["annotations"] = [{**_label_right(value, shown.target.brief), "x": 0, "xanchor": "left"}]
    return {"data": traces, "layout": layout}


_MIDDLES = {"median": "median", "steady": "median without the first", "sum": "sum"}


def samples(values: Sequence[float], metric: Metric, rule: ValueRule = "median") -> Figure:
    """Return all samples of one measurement in measured order, with the resulting value."""
    step = max(1, -(-len(values) // _SHOWN_SAMPLES))
    drawn = list(values[::step])
    middle = value_of(values, rule)
    return {
        "data": [
            {
                **_SAMPLE,
                "x": [index * step + 1 for index in range(len(drawn))],
                "y": drawn,
                "hovertemplate": f"%{{y:.6~g}} {escape(metric.unit)}<extra>sample %{{x}}</extra>",
            }
        ],
        "layout": {
            **_SAMPLES,
            "yaxis": {"title": {"text": axis_title(metric)}},
            "shapes": [_line_across(middle, {"color": BETTER, "width": 1.5})],
            "annotations": [_label_right(middle, f"{_MIDDLES[rule]} {middle:.6g}")],
        },
    }


def axis_title(metric: Metric) -> str:
    """Return ``GB/s, higher is better``; the metric's title stands above the chart."""
    direction = "" if metric.direction == "none" else better(metric)
    return escape(", ".join(filter(None, (metric.unit, direction))))


def _markers(points: Sequence[Point], metric: Metric, name: str, marker: Figure) -> Figure:
    return {
        **_MARKERS,
        "name": name,
        "x": [point.order_time.isoformat() for point in points],
        "marker": {"size": 10, **marker},
        "text": [_hover(point, metric) for point in points],
        "customdata": [f"#run-{point.run_id}" for point in points],
    }


def _hover(point: Point, metric: Metric) -> str:
    if point.median is None:
        head = f"<b>{escape(point.code or point.status)}</b>"
    else:
        head = f"<b>{point.median:.{metric.precision}f} {escape(metric.unit)}</b>"
        if point.spread:
            head += f" ± {point.spread:.2%} over {point.n} samples"
    change = f"{point.change:+.2%} against the baseline" if point.change is not None else ""
    lines = [
        head,
        f"{_LOOKS.get(point.verdict, ('',))[0]} {change}".strip(),
        *(escape(target.verdict(point.median, metric.direction)) for target in point.targets),
        f"{point.order_time:%Y-%m-%d %H:%M} UTC · run {point.run_id}",
        escape(" · ".join(filter(None, (point.host, point.environment.torch, point.source)))),
        *(escape(change) for change in point.changed[:4]),
    ]
    return "<br>".join(line for line in lines if line)


def _time_range(times: Sequence[datetime]) -> list[str]:
    """Return the first and last time with a margin; a single time gets a day on either side."""
    first, last = min(times), max(times)
    air = max((last - first) * 0.05, timedelta(hours=1)) if last > first else timedelta(days=1)
    return [(first - air).isoformat(), (last + air).isoformat()]


def _value_range(shown: History, points: Sequence[Point]) -> list[float] | None:
    """Return the range of all values with their spread and the target; None lets Plotly choose."""
    ends = [
        (point.median or 0.0) * factor
        for point in points
        for factor in (1 - (point.spread or 0.0), 1 + (point.spread or 0.0))
    ]
    if not ends:
        return None
    if shown.target:
        ends.append(shown.target.value)
    low, high = min(ends), max(ends)
    air = (high - low) * 0.12 or abs(high) * 0.05 or 1.0
    floor = min(0.0, *(point.median or 0.0 for point in points))  # a wide spread ends at 0
    return [max(low - air, floor), high + air]


def _line_across(value: float, line: Figure) -> Figure:
    return {**_ACROSS, "y0": value, "y1": value, "line": line}


def _label_right(value: float, text: str) -> Figure:
    return {**_LABEL, "y": value, "text": escape(text)}
