"""Template tags of the page that compares: numbers, intervals, and all changes on one axis."""

from __future__ import annotations

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from hud.pages.compare import text
from hud.pages.compare.groups import KINDS, TIME, Mean, Totals
from hud.pages.compare.judged import Judged
from hud.pages.compare.query import ComparePage
from hud.pages.compare.text import Shown
from hud.pages.sparkline import interval
from hud.templatetags.hud_tags import unit

register = template.Library()
_WIDTH, _FLOOR, _TOP = 1360, 86, 10  # of the chart of all changes
_STEP = 7  # between dots
_NAMED = 9
_TONES = {"regressed": "w", "failed": "w", "improved": "g", "inconclusive": "u"}
register.filter("change", text.percent)
register.filter("parts", text.parts)
register.filter("reasons", text.reasons)
register.filter("apart", text.apart)
register.filter("in_metric", text.value)
register.filter("ends", text.ends)
register.filter("mean_ends", text.mean_ends)
register.filter("metric_unit", unit)


@register.filter
def share100(share: float) -> str:
    """Return a share as per cent without its sign, as beside ±."""
    return f"{share * 100:.1f}"


@register.filter
def tiles(totals: Totals) -> list[tuple[str, Mean | None]]:
    """Return the means of all experiments together, a tile for each question."""
    return [(kind, totals.means.get(kind)) for kind in (*KINDS, TIME)]


@register.simple_tag
def change_interval(judged: Judged, reach: float) -> SafeString:
    """Return the change with its 95 % interval on the axis that all rows share."""
    if judged.change is None:
        return SafeString("")
    margin, band = judged.margin or 0.0, 2 * (judged.noise or 0.0)
    return interval(
        judged.change,
        judged.change - margin,
        judged.change + margin,
        axis=(-reach, reach),
        noise=(-band, band),
        tone=_TONES.get(judged.verdict, ""),
    )


@register.simple_tag
def swarm(page: ComparePage, rows: Shown) -> SafeString:
    """Return all changes of the first candidate on one axis: a dot is an experiment, named where it moved."""
    changes, reach = page.changes(0), page.reach
    if len(changes) < 2:
        return SafeString("")

    def x_of(change: float) -> float:
        return _WIDTH / 2 + (_WIDTH / 2 - 60) * max(-1.0, min(1.0, change / reach))

    bins: dict[int, list[str]] = {}
    for verdict, change in reversed(changes):
        bins.setdefault(round(x_of(change) / _STEP), []).append(_TONES.get(verdict, "d"))
    marks = []
    for place, tones in bins.items():
        step = min(_STEP, (_FLOOR - _TOP) / len(tones))
        marks += [
            f'<circle class="pt {tone}" cx="{place * _STEP}" cy="{_FLOOR - step * at:.1f}" r="3"/>'
            for at, tone in enumerate(tones)
        ]
    ticks = [
        (f"{x_of(reach * part):.0f}", text.percent(reach * part, 0 if reach >= 0.1 else 1)) for part in _PARTS
    ]
    names = [
        (x_of(cell.change), row.experiment.title)
        for row in (*rows.movers, *rows.undecided)
        if (cell := row.cells[0]) and cell.change is not None and (cell.moved or cell.undecided)
    ]
    return format_html(
        '<svg class="swarm" viewBox="0 0 {} 112" role="img" aria-label="Change of {} experiments, {} to {}">'
        '<line class="zero" x1="{}" x2="{}" y1="4" y2="92"/>'
        '<line class="gr" x1="20" x2="{}" y1="92" y2="92"/>{}{}{}</svg>',
        _WIDTH,
        len(changes),
        text.percent(-reach),
        text.percent(reach),
        _WIDTH // 2,
        _WIDTH // 2,
        _WIDTH - 20,
        format_html_join("", '<text x="{}" y="108" text-anchor="middle">{}</text>', ticks),
        SafeString("".join(marks)),  # nosec B703 B308: of format_html
        format_html_join("", '<text class="nm" x="{}" y="{}" text-anchor="middle">{}</text>', _named(names)),
    )


_PARTS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def _named(names: list[tuple[float, str]]) -> list[tuple[str, int, str]]:
    """Return the labels of the first few, each on the lowest of four lines where it has room."""
    taken: list[list[tuple[float, float]]] = [[], [], [], []]
    placed = []
    for x, name in names[:_NAMED]:
        half = 3.4 * len(name[:28]) + 6
        middle = max(half, min(_WIDTH - half, x))
        for line, spans in enumerate(taken):
            if all(middle + half < low or middle - half > high for low, high in spans):
                spans.append((middle - half, middle + half))
                placed.append((f"{middle:.0f}", 74 - 15 * line, name[:28]))
                break
    return placed
