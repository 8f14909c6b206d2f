"""Template tags of the experiment page: cells and rows that are too many for templates of their own."""

from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

import orjson
from django import template
from django.http import HttpRequest
from django.utils.safestring import SafeString

from hud.models import Experiment, Metric, Point
from hud.pages.experiment import drawing
from hud.pages.experiment.compilations import Compilations
from hud.pages.experiment.multiples import Chart
from hud.pages.experiment.query import TableRow
from hud.runs.branches import other_branch
from hud.tables.formatting import address, ago, moment, signed_percent
from hud.tables.html import badge_html, element, link, options
from hud.tables.kernels import KernelTable, short_name
from hud.templatetags.hud_tags import commit, targets_html, value_html, verdict_badge

register = template.Library()
_BARS = ("before", "code", "fusion", "choices", "same", "after")  # as short as they fit
_MOST_KERNELS = 10  # in the table of choices
_CURRENT = ' aria-current="true"'
_OF_OTHER_CLASS = ' class="other-class"'
_OTHER_CLASS = (
    ' <span class="tag" title="device, driver or library versions differ from the newest point&#x27;s; not'
    ' part of its baseline">different environment</span>'
)


@register.filter
def magnitude(value: float) -> str:
    """Format a number of noises: ``12``, ``2.6``."""
    return f"{abs(value):.0f}" if abs(value) >= 10 else f"{abs(value):.1f}"


@register.simple_tag
def row_badge(row: Chart) -> SafeString:
    """Show what the judge says of a chart's newest point."""
    point = row.point
    if not point.verdict:
        return SafeString("")
    told = point.change is not None and point.verdict in {"improved", "regressed", "inconclusive"}
    return badge_html(point.verdict, signed_percent(point.change) if told else point.verdict)


@register.simple_tag
def overlay_link(request: HttpRequest, one: Experiment, overlaid: Sequence[Experiment]) -> SafeString:
    """Return the link that draws a backend beside this one, or takes it away again."""
    ids = [other.pk for other in overlaid]
    shown = one.pk in ids
    ids = [pk for pk in ids if pk != one.pk] if shown else [*ids, one.pk]
    query = request.GET.copy()
    query["overlay"] = ",".join(map(str, ids))
    if not ids:
        del query["overlay"]
    checked, label = ("true", "☑ overlay") if shown else ("false", "☐ overlay")
    address = f"?{query.urlencode()}#history"
    return link(address, label, css="overlay-box", role="checkbox", aria_checked=checked)


@register.simple_tag
def point_row(one: TableRow, ends: tuple[float, float], target: str | None, sources: bool) -> SafeString:
    """Return a row of the table of points, with the columns that some point fills. `target` is the one in the
    head of the table, '' where they differ, None where there are none."""
    point, run, changed = one.point, one.point.run, one.changed
    measured = [value for value in point.compilation_values if value is not None]
    marks = drawing.small(measured, *ends) if len(measured) > 1 else ""
    differences = escape("; ".join(changed[:2])) or '<span class="dim">no difference</span>'
    if len(changed) > 2:
        rest = f"and {len(changed) - 2} more"
        differences += f' <span class="tag" title="{escape("; ".join(changed))}">{rest}</span>'
    if not one.same_class:
        differences += _OTHER_CLASS
    source = escape((run.source or "upload") if run.upload_id else "runner")
    branch = warning = processes = ""
    if name := other_branch(run.branch):
        title = "branch: shown, never a baseline"
        branch = f' <span class="tag" title="{title}">{escape(name)}</span>'
    if point.rerun:
        branch += ' <span class="tag" title="shown, never a baseline">rerun</span>'
    if point.warning:
        warning = f' <span class="tag" title="{escape(point.warning)}">warning</span>'
    if (n := point.processes) > 1:
        processes = f' <span class="dim" title="in {n} processes">× {n}</span>'
    met = ""
    if target is not None:
        own = badge_html(point.met, title=point.targets[0].name) if target and point.targets else ""
        met = f"<td>{own or targets_html(point, brief=True)}</td>"
    return SafeString(
        f'<tr id="run-{point.run_id}"{"" if one.same_class else _OF_OTHER_CLASS}>'
        f'<th scope="row">{moment(point.order_time)}</th><td>{commit(run.commit)}{branch}</td>'
        f'<td class="num">{value_html(point)}{warning}</td><td>{marks}{processes}</td>'
        f"<td>{verdict_badge(point)}</td>{met}"
        f'<td class="host-name">{escape(run.host_name or "unknown")}</td><td class="long">{differences}</td>'
        f"{f'<td>{source}</td>' if sources else ''}"
        f'<td><a href="{address(point.run_id, "run")}">{point.run_id}</a></td></tr>'
    )


@register.simple_tag
def changed_bars(table: KernelTable) -> SafeString:
    """Return the way from the total before to the total after as labelled bars."""
    base_us, head_us = table.attribution.base.busy_us, table.attribution.head.busy_us
    if base_us is None or head_us is None:
        return SafeString("")
    steps, running = [("whole", 0.0, base_us)], base_us
    for one in table.sums:
        tone = "draw" if one.icon == "⇅" else "slower" if one.change_us > 0 else "faster"
        steps.append(("same" if one.icon == "=" else tone, running, running + one.change_us))
        running += one.change_us
    steps.append(("whole", 0.0, head_us))
    ends = [end for _tone, _start, end in steps]
    low, high = min(ends), max(ends)
    floor = low - (max(0.25 * (high - low), 0.02 * abs(high)) or 1.0)  # noise looks like noise
    bars, texts = [], []
    for place, (tone, start, end) in enumerate(steps):
        top, foot = (max(start, end), min(start, end)) if start else (end, floor)
        y, bottom = (14 + 56 * (high - value) / (high - floor) for value in (top, foot))
        x = place * 17 + 1
        bars.append(
            f'<rect class="{tone}" x="{x}%" y="{y:.1f}" width="13%" height="{max(bottom - y, 1):.1f}"/>'
        )
        value = in_unit(end, table) if tone == "whole" else signed_in_unit(end - start, table)
        texts += [
            f'<text class="middle" x="{x + 6.5}%" y="{at:.1f}">{text}</text>'
            for at, text in ((y - 3, value), (84, _BARS[place]))
        ]
    return SafeString(
        f'<svg class="plot changed-bars" height="88" role="img" aria-label="from {base_us:.4g} to'
        f' {head_us:.4g} µs, by the sums below">{"".join(bars + texts)}</svg>'
    )


@register.simple_tag
def metric_options(values: Sequence[Point], shown: Metric) -> SafeString:
    """Return the metrics of an experiment as options of a select."""
    return options(((value.metric.name, value.metric.title) for value in values), shown.name)


@register.simple_tag
def metric_row(value: Point, shown: Metric, in_stream: str) -> SafeString:
    """Return a row of the table of all metrics."""
    metric = value.metric
    return SafeString(
        f'<tr{_CURRENT if metric == shown else ""}><th scope="row">'
        f'<a href="?{in_stream}&amp;metric={quote(metric.name, safe="")}">{escape(metric.title)}</a>'
        f' <span class="dim">{escape(metric.name)}</span></th><td class="num">{value_html(value)}</td>'
        f'<td class="num">{value.samples}</td><td>{verdict_badge(value)}</td><td>{targets_html(value)}</td>'
        f'<td class="when"><a href="{address(value.run_id, "run")}">{ago(value.order_time)}</a></td></tr>'
    )


@register.simple_tag
def choice_rows(found: Compilations) -> SafeString:
    """Return the rows of the table of choices, those of a kernel together."""
    rows = []
    for kernel in found.chosen[:_MOST_KERNELS]:
        span = f'rowspan="{len(kernel.choices)}"'
        name = f'<code title="{escape(kernel.name)}">{escape(short_name(kernel.name))}</code>'
        before = f'<th scope="rowgroup" {span}>{name}</th>'
        after = f'<td class="num" {span}>{f"{kernel.lost_us:.2f}".replace("-", "−")}</td>'
        for one in kernel.choices:
            rows.append(
                f"<tr>{before}<td>{escape(one.config or one.choice)}</td>"
                f'<td class="num">{one.n} of {found.counted}</td>'
                f'<td class="num">{one.median_us:.2f}</td>{after}</tr>'
            )
            before = after = ""
    return SafeString("".join(rows))


@register.simple_tag
def json_block(content: Any, name: str) -> SafeString:
    """Return a data block for the page's script."""
    data = orjson.dumps(content).decode()
    for char in "<>&":  # a data block ends at the first "</script" that stands in it
        data = data.replace(char, f"\\u{ord(char):04x}")
    return element("script", SafeString(data), type="application/json", id=name)
