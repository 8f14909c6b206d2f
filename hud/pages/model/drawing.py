"""Charts of a model's trend, one for each place and options with a line for each backend, and the marks of its
rankings: SVG that needs no script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from django.utils.safestring import SafeString

from hud.models import Metric
from hud.pages.backends_table import colour
from hud.pages.model.query import Combination, ModelPage, Place
from hud.points.nights import day
from hud.sql import from_epoch_us, since_epoch_us
from hud.tables.formatting import number

MOST_PANELS = 12
_WIDTH, _HEIGHT = 330, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 276, 12, 130  # of the drawn area
_LINE = 11  # pixels between two labels
_SPAN = 0.1  # of the middle that an axis reaches at least, so that noise looks like noise
_COMPARABLE = 8.0  # highest ÷ lowest value of charts that share an axis


@dataclass(frozen=True)
class Panel:
    place: Place
    options: str
    lines: list[Combination]

    @property
    def values(self) -> list[float]:
        return [value for one in self.lines for _time, value in one.trend if value is not None]

    @property
    def is_quiet(self) -> bool:
        return not any(one.verdict in {"regressed", "improved"} for one in self.lines)


def panels(page: ModelPage) -> dict[str, Any]:
    """Return the first charts, with what moved before the others, how many more there are, and whether they
    have one axis."""
    by_place: dict[tuple[Place, bool, str], list[Combination]] = {}
    for (setup, place), one in sorted(page.grid.items(), key=lambda item: page.setups.index(item[0][0])):
        options = ", ".join(filter(None, (setup.options, "dynamic shapes" if setup.dynamic else "")))
        by_place.setdefault((place, setup.dynamic, options), []).append(one)
    every = [Panel(place, options, lines) for (place, _dynamic, options), lines in sorted(by_place.items())]
    every = sorted((one for one in every if len(one.values) > len(one.lines)), key=lambda one: one.is_quiet)
    times = [time for one in every for line in one.lines for time, _value in line.trend]
    values = [value for one in every for value in one.values]
    shared = bool(values) and 0 < max(values) <= _COMPARABLE * min(values)
    drawn = [
        (one, _chart(one, _ends(values if shared else one.values), (min(times), max(times))))
        for one in every[:MOST_PANELS]
    ]
    return {"panels": drawn, "more_panels": len(every) - len(drawn), "one_axis": shared and len(drawn) > 1}


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    air = max((high - low) * 0.06, (_SPAN * abs(high + low) / 2 - (high - low)) / 2) or 0.5
    return low - air, high + air


def _ticks(low: float, high: float) -> list[float]:
    """Return 2 to 5 round numbers."""
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= raw)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _chart(panel: Panel, ends: tuple[float, float], times: tuple[int, int]) -> SafeString:
    (low, high), (first, last) = ends, times

    def x_of(time: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (time - first) / ((last - first) or 1)

    def y_of(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low)

    parts = []
    for tick in _ticks(low, high):
        y = y_of(tick)
        parts.append(f'<path class="rule" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for time, anchor in ((first, "start"), (last, "end")):
        text = day(from_epoch_us(time))
        parts.append(f'<text x="{x_of(time):.1f}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{text}</text>')
    newest: list[tuple[float, Combination, float]] = []
    for one in panel.lines:
        if one.regression and one.verdict == "regressed":
            x = x_of(max(since_epoch_us(one.regression.since), first))
            parts.append(
                f'<path class="since" d="M{x:.1f} {_TOP}V{_BOTTOM}m-4 {_TOP - _BOTTOM - 6}h8l-4 6z"/>'
            )
        drawn = []
        for missing, spots in groupby(one.trend, lambda spot: spot[1] is None):
            places = [f"{x_of(time):.1f},{y_of(value or 0.0):.1f}" for time, value in spots]
            drawn += [] if missing else [f'<polyline points="{" ".join(places)}"/>']
        time, value = next(
            ((time, value) for time, value in reversed(one.trend) if value is not None), (0, None)
        )
        if value is not None:
            drawn.append(f'<circle cx="{x_of(time):.1f}" cy="{y_of(value):.1f}" r="2.4"/>')
            newest.append((y_of(value), one, value))
        parts.append(f'<g class="s{colour(one.setup.backend)}">{"".join(drawn)}</g>')
    newest.sort(key=lambda line: line[0])
    for y, (_y, one, value) in zip(_apart([y for y, *_of in newest]), newest, strict=True):
        key = f'<rect class="s{colour(one.setup.backend)}" x="{_RIGHT + 6}" y="{y - 3:.1f}" width="6" height="6" rx="1"/>'
        parts.append(f'{key}<text x="{_RIGHT + 16}" y="{y + 4:.1f}">{_number(value, one)}</text>')
    label = "; ".join(f"{one.setup.backend} {_number(value, one)}" for _y, one, value in newest)
    return SafeString(
        f'<svg class="trend-lines" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _number(value: float, one: Combination) -> str:
    metric: Metric | None = one.shown.metric if one.shown else None
    return number(value, metric) if metric else f"{value:.4g}"


def _apart(ys: Sequence[float]) -> list[float]:
    """Return where labels stand that do not overlap: moved down, then up from the end of the drawing."""
    down = list(ys)
    for place in range(1, len(down)):
        down[place] = max(down[place], down[place - 1] + _LINE)
    limit = float(_HEIGHT - 6)
    for place in reversed(range(len(down))):
        down[place] = min(down[place], limit)
        limit = down[place] - _LINE
    return down


def marks(values: Sequence[float]) -> SafeString:
    """Return a dot for each value, the first, which is the worst, at the left and large."""
    worst, best = values[0], values[-1]
    dots = [
        f'<circle cx="{6 + 168 * (value - worst) / (best - worst):.1f}" cy="9" r="3"/>' for value in values
    ]
    return SafeString(
        '<svg class="marks" width="180" height="18" viewBox="0 0 180 18" aria-hidden="true">'
        f'<path d="M6 9H174"/>{"".join(dots)}<circle class="worst" cx="6" cy="9" r="4.4"/></svg>'
    )
