"""Template tags of a suite's table, which has too many cells for templates of their own."""

from collections.abc import Collection, Mapping
from datetime import datetime
from html import escape  # of strings only, at a fifth of the cost of Django's
from typing import Any

from django import template
from django.utils.safestring import SafeString

from hud.models import Point
from hud.pages.query_string import without
from hud.pages.suite.newest import SuiteTotals
from hud.pages.suite.query import SPEEDUPS, PlainCell, SuitePage, SuiteRow
from hud.pages.tags import cell_html, sparkline
from hud.tables.formatting import address, ago, long_name, number, signed_percent, unit
from hud.tables.html import NOTHING, badge_html, element, icon_html, join, span
from hud.tables.table import Column, DataTable, Order

register = template.Library()
_UNKNOWN = '<span class="dim">unknown</span>'
_DYNAMIC = ' <span class="dim">dynamic</span>'
_SHORT = {"improved", "regressed", "inconclusive"}
_BELOW = f' <span class="below">{icon_html("worse")} below eager</span>'


@register.simple_tag(takes_context=True)
def column_heads(context: Any, page: SuitePage, current: str) -> SafeString:
    """Return the heads of the columns of results, which sort."""
    order = Order(current, without(context["request"].GET, "sort", "page"))
    columns = [Column("", one.title, css="num", tooltip=one.title_more, sort=one.key) for one in page.columns]
    return DataTable[SuiteRow](*columns).head(None, order)


@register.simple_tag
def suite_rows(page: SuitePage, may: Collection[str], in_stream: str) -> SafeString:
    """Return the rows of a suite's table: identity, trend, a cell for each column."""
    attached = page.attached if "run" in may else []
    times = {row.leading.order_time for row in page.rows if row.leading}
    shown = {time: ago(time) for time in times}  # of few runs
    labels = [escape(column.title) for column in page.columns]
    return SafeString("".join([_row(row, attached, shown, in_stream, labels) for row in page.rows]))


def _row(
    row: SuiteRow,
    attached: Collection[tuple[str, str]],
    times: Mapping[datetime, str],
    in_stream: str,
    labels: list[str],
) -> str:
    experiment = row.experiment
    plain, tick, again, newest = experiment.title, "", "", ""
    title = escape(plain)
    if attached:
        box = f'<input type="checkbox" name="experiment" value="{experiment.pk}" aria-label="Rerun {title}">'
        tick = f'<td class="tick">{box}</td>'
        if (experiment.device, experiment.arch) in attached:
            again = f' <button class="small quiet" name="only" value="{experiment.pk}">Rerun</button>'
    words = "".join(
        f'<td class="when">{escape(word).replace("_", "_<wbr>") or _UNKNOWN}</td>' for word in row.words
    )
    below = row.is_below_eager
    cells = "".join(
        [
            f'<td class="num" data-label="{label}">'
            f"{_cell(cell)}{_mark(cell, mark) if mark else ''}"
            f"{_BELOW if below and cell and cell.metric.name in SPEEDUPS else ''}</td>"
            for cell, mark, label in zip(row.cells, row.marks, labels, strict=True)
        ]
    )
    if row.leading:
        newest = f'<a href="{address(row.leading.run_id, "run")}">{times[row.leading.order_time]}</a>'
    name = title.replace(",", ",<wbr>").replace("[", "<wbr>[")
    head = f'<a href="{address(experiment.pk, "experiment")}?{in_stream}"{long_name(plain)}>{name}</a>'
    head += _DYNAMIC if experiment.dynamic else ""
    return (
        f'<tr>{tick}<th scope="row">{head}</th>{words}<td>{sparkline(row.trend)}</td>{cells}'
        f'<td class="when">{newest}{again}</td></tr>'
    )


def _mark(cell: Point | PlainCell | None, mark: str) -> str:
    """Return what tells a cell from the usual metric of its column."""
    return f' <span class="of" title="{escape(cell.metric.name)}">{escape(mark)}</span>' if cell else ""


def _cell(cell: Point | PlainCell | None) -> str:
    """Return a cell; of a verdict with a change only that, with the word as its title."""
    badge = ""
    if not isinstance(cell, PlainCell):
        has_change = cell is not None and cell.change is not None and cell.verdict in _SHORT
        if cell is None or not has_change or cell.targets or cell.status_code:
            return cell_html(cell, with_unit=True)
        badge = badge_html(cell.verdict, signed_percent(cell.change), cell.verdict)
    value, sign = number(cell.value, cell.metric), span(unit(cell.metric), "unit")
    return f'<span class="value">{value}</span> {sign} {badge}'


@register.simple_tag
def suite_mean(totals: SuiteTotals, key: str) -> SafeString:
    """Show the geometric mean of a column, with of how many experiments it is."""
    if key not in totals.means:
        return NOTHING
    mean, n = totals.means[key]
    sign = "s" if key in {"compile", "warm"} else "×"
    shown = join(f"{mean:.3g}", element("span", sign, css="unit"))
    return element("span", shown, title=f"geometric mean of {n} experiments")
