"""Charts of a model's trend, and the marks of what is worst: SVG that needs no script."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import groupby
from typing import Any

from django.utils.safestring import SafeString

from hud.pages.backends_table import colour
from hud.pages.model.query import Combination
from hud.points.nights import day
from hud.tables.formatting import number

_MOST = 12  # charts
_WIDTH, _HEIGHT = 330, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 276, 12, 130  # of the drawn area
_LINE = 11  # pixels between two labels
_SPAN = 0.1  # of its middle that an axis reaches at least, so that noise looks like noise
_COMPARABLE = 8.0  # highest ÷ lowest value of charts that share an axis


def panels(combinations: Sequence[Combination]) -> dict[str, Any]:
    """Return a chart for each place and its options with a line for each backend, those with what moved first,
    how many more there are, and whether they share an axis."""
    by_place: dict[tuple[str, ...], list[Combination]] = {}
    for one in combinations:
        if len(_values([one])) > 1:
            by_place.setdefault(one.label[1:], []).append(one)
    charts = sorted(by_place.items(), key=lambda item: not any(one.regression for one in item[1]))
    every = _values([one for _place, lines in charts for one in lines])
    shared = bool(every) and 0 < max(every) <= _COMPARABLE * min(every)
    times = [time for _place, lines in charts for one in lines for time, _value in one.trend]
    drawn = [
        (*place, _chart(lines, every if shared else _values(lines), (min(times), max(times))))
        for place, lines in charts[:_MOST]
    ]
    return {"charts": drawn, "all_charts": len(charts), "one_axis": shared and len(drawn) > 1}


def _values(lines: Sequence[Combination]) -> list[float]:
    return [value for one in lines for _time, value in one.trend if value is not None]


def _chart(
    lines: Sequence[Combination], values: Sequence[float], times: tuple[datetime, datetime]
) -> SafeString:
    least, most, (first, last) = min(values), max(values), times
    air = max((most - least) * 0.06, (_SPAN * abs(most + least) / 2 - (most - least)) / 2) or 0.5
    low, high = least - air, most + air

    def x_of(time: datetime) -> float:
        return _LEFT + (_RIGHT - _LEFT) * ((time - first) / ((last - first) or timedelta(1)))

    def y_of(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low)

    parts = []
    for tick in _ticks(low, high):
        parts.append(f'<path class="rule" d="M{_LEFT} {y_of(tick):.1f}H{_RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for time, anchor in ((first, "start"), (last, "end")):
        parts.append(f'<text x="{x_of(time)}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{day(time)}</text>')
    for one in lines:
        if one.regression:
            x = x_of(max(one.regression.since, first))
            parts.append(f'<path class="since" d="M{x:.1f} {_BOTTOM}V{_TOP}l-4 -6h8l-4 6z"/>')
        spots = [(x_of(time), value and y_of(value)) for time, value in one.trend]
        pieces = [
            list(piece) for missing, piece in groupby(spots, lambda spot: spot[1] is None) if not missing
        ]
        drawn = [f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in piece)}"/>' for piece in pieces]
        x, y = pieces[-1][-1]
        parts.append(f'<g {_colour(one)}>{"".join(drawn)}<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/></g>')
    newest = sorted(((_values([one])[-1], one) for one in lines), key=lambda line: -line[0])
    texts = [(number(value, one.point.metric), one) for value, one in newest]
    for (shown, one), y in zip(texts, _apart([y_of(value) for value, _one in newest]), strict=True):
        parts.append(f'<rect {_colour(one)} x="{_RIGHT + 6}" y="{y - 3:.1f}" width="6" height="6"/>')
        parts.append(f'<text x="{_RIGHT + 16}" y="{y + 4:.1f}">{shown}</text>')
    label = escape(", ".join(f"{one.label.backend} {shown}" for shown, one in texts))
    frame = f'class="trend-lines" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}"'
    return SafeString(f"<svg {frame}>{''.join(parts)}</svg>")


def _colour(one: Combination) -> str:
    return f'class="s{colour(one.label.backend)}"'


def _ticks(low: float, high: float) -> list[float]:
    """Return 2 to 5 round numbers."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= (high - low) / 4)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _apart(ys: Sequence[float]) -> list[float]:
    """Return where labels stand that do not overlap: moved down, then up from the end of the drawing."""
    down = list(ys)
    for place in range(1, len(down)):
        down[place] = max(down[place], down[place - 1] + _LINE)
    for place in range(len(down) - 1, -1, -1):
        down[place] = min(down[place], _HEIGHT - 6 - _LINE * (len(down) - 1 - place))
    return down


def marks(values: Sequence[float | None]) -> SafeString:
    """Return a dot for each value, the first, which is the worst, at the left and large."""
    worst, best = values[0] or 0.0, values[-1] or 0.0
    xs = (6 + 168 * ((value or 0.0) - worst) / (best - worst) for value in values)
    dots = "".join([f'<circle cx="{x:.1f}" cy="9" r="3"/>' for x in xs])
    return SafeString(
        '<svg class="marks" width="180" height="18" viewBox="0 0 180 18" aria-hidden="true">'
        f'<path d="M6 9H174"/>{dots}<circle class="worst" cx="6" cy="9" r="4.4"/></svg>'
    )
