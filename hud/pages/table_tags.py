"""Numbers as the tables of sides write them: unit apart, minus as a sign, a space before the per cent."""

from collections.abc import Sequence

from django import template
from django.utils.safestring import SafeString

from hud.pages.backends_table import Cell, Table
from hud.pages.sparkline import interval
from hud.pages.sparkline import sparkline as draw
from hud.points.nights import COMPILE, MEMORY, SPEEDUP, Night
from hud.runs.lines import RunLine
from hud.tables.formatting import address, signed_percent
from hud.tables.html import element, link, options

register = template.Library()
register.simple_tag(draw, name="draw_line")


def fixed(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}".replace("-", "−")


@register.filter
def margin(share: float | None) -> str:
    """Write half of an interval, ``± 0.2``, in per cent."""
    return "" if share is None else f"± {share * 100:.1f}"


@register.filter
def seconds_or_ratio(cell: Cell, side: str) -> str:
    value = getattr(cell, side)
    is_long = cell.column == COMPILE and value is not None and value >= 1000
    return fixed(value, 0 if is_long else {SPEEDUP: 3, COMPILE: 1, MEMORY: 2}[cell.column])


@register.simple_tag
def side_options(nights: Sequence[Night], chosen: Night | None) -> SafeString:
    """Return an option for each night, the newest first; the picker shows the chosen one already."""
    others = (night for night in reversed(nights) if night != chosen)
    return options(((night.side, f"{night.title} {night.short_commit}") for night in others), "")


@register.simple_tag
def run_strip(strip: Sequence[tuple[RunLine, str]]) -> SafeString:
    """Return a small box for each run that links to it, coloured by what to show of it."""
    cells = []
    for line, kind in strip:
        pk, state = line.run.pk, line.run.state
        name = element("span", f"run {pk}, {state}", css="visually-hidden")
        title = f"{pk} {line.title}: {state}{', something regressed' if kind == 'regressed' else ''}"
        cells.append(link(address(pk, "run"), name, css=f"rc {kind}", title=title))
    return SafeString("".join(cells))


@register.simple_tag
def cell_line(cell: Cell, table: Table) -> SafeString:
    """Draw a cell's nights; those since the baseline are coloured where it moved."""
    if len([value for value in cell.trend if value is not None]) < 3:
        return SafeString("")
    since = table.base.time if table.base else None
    moved = sum(since is None or night.time > since for night in table.nights) if cell.tone else 0
    return draw(cell.trend, noise=cell.noise, moved=moved, tone=cell.tone or "worse", size=(38, 16))


@register.simple_tag
def mean_interval(cell: Cell, table: Table) -> SafeString:
    """Draw the change of a mean speedup with its 95 % interval over the cases; the noise is the grey band.
    Other columns have no room."""
    low, high = cell.mean.low, cell.mean.high
    if cell.column != SPEEDUP or cell.change is None or low is None or high is None:
        return SafeString("")
    reach, band = table.reach, cell.noise_band
    return interval(
        cell.change,
        low - 1,
        high - 1,
        axis=(-reach, reach),
        noise=(-band, band),
        tone={"worse": "w", "better": "g"}.get(cell.tone, ""),
        width=34,
        label=f"change {signed_percent(cell.change)}, 95 % interval {signed_percent(low - 1)} to "
        f"{signed_percent(high - 1)}",
    )
