"""Template tags of a suite's table, which has too many cells for templates of their own."""

from __future__ import annotations

from collections.abc import Collection

from django import template
from django.urls import reverse
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString

from hud.pages.suite.newest import Totals
from hud.pages.suite.query import SPEEDUPS, Row
from hud.pages.values import MetricValue
from hud.templatetags.experiment_tags import unit_cell
from hud.templatetags.hud_tags import ago, badge_html, number, signed_percent, sparkline, unit

register = template.Library()
_NOTHING = SafeString("")
_SHORT = {"improved", "regressed", "inconclusive"}


@register.simple_tag
def suite_row(row: Row, attached: Collection[tuple[str, str]], may: Collection[str]) -> SafeString:
    """Return a row of a suite's table: identity, trend, a cell for each column."""
    one = row.experiment
    tick, again = _NOTHING, _NOTHING
    if attached and "run" in may:
        tick = format_html(
            '<td class="tick"><input type="checkbox" name="experiment" value="{}" aria-label="Rerun {}">'
            "</td>",
            one.pk,
            one.title,
        )
        if (one.device, one.arch) in attached:
            again = format_html(' <button class="small quiet" name="only" value="{}">Rerun</button>', one.pk)
    words = format_html_join(
        "",
        '<td class="when">{}</td>',
        ((word or SafeString('<span class="dim">unknown</span>'),) for word in row.words),
    )
    cells = format_html_join(
        "",
        '<td class="num">{}{}</td>',
        (
            (_cell(row, cell), format_html(' <span class="of" title="{}">{}</span>', cell.metric.name, mark))
            if cell and mark
            else (_cell(row, cell), _NOTHING)
            for cell, mark in zip(row.cells, row.marks, strict=True)
        ),
    )
    newest = _NOTHING
    if row.leading:
        run = reverse("run", args=[row.leading.run_id])
        newest = format_html('<a href="{}">{}</a>', run, ago(row.leading.order_time))
    return format_html(
        '<tr>{}<th scope="row"><a href="{}">{}</a>{}</th>{}<td>{}</td>{}<td class="when">{}{}</td></tr>',
        tick,
        reverse("experiment", args=[one.pk]),
        SafeString(escape(one.title).replace(",", ",<wbr>").replace("[", "<wbr>[")),
        SafeString(' <span class="dim">dynamic</span>') if one.dynamic else _NOTHING,
        words,
        sparkline(row.trend),
        cells,
        newest,
        again,
    )


def _cell(row: Row, cell: MetricValue | None) -> SafeString:
    shown = unit_cell(cell)
    told = cell is not None and cell.verdict in _SHORT and cell.change is not None
    if cell and told and cell.median is not None and not cell.targets and not cell.status_code:
        badge = badge_html(cell.verdict, signed_percent(cell.change), cell.verdict)  # the word as its title
        shown = format_html(
            '<span class="value">{}</span> <span class="unit">{}</span> {}',
            number(cell.median, cell.metric),
            unit(cell.metric),
            badge,
        )
    if cell and cell.metric.name in SPEEDUPS and row.below_eager is not None and cell.median is not None:
        return format_html('{} <span class="below">▼ slower than eager</span>', shown)
    return shown


@register.simple_tag
def suite_mean(totals: Totals, key: str) -> SafeString:
    """Show the geometric mean of a column, with of how many experiments it is."""
    if key not in totals.means:
        return _NOTHING
    mean, n = totals.means[key]
    return format_html('<span title="geometric mean of {} experiments">{}</span>', n, f"{mean:.3g}")
