"""Template tags of the experiment page: cells and rows that are too many for templates of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import orjson
from django import template
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from hud.models import Experiment, Metric
from hud.pages.code.table import Table
from hud.pages.experiment import drawing
from hud.pages.experiment.history import Point
from hud.pages.experiment.multiples import Row
from hud.pages.values import MetricValue
from hud.templatetags.commit_tags import commit
from hud.templatetags.hud_tags import (
    ago,
    badge_html,
    cell_html,
    moment,
    signed_percent,
    targets_html,
    unit,
    value_html,
    verdict_badge,
)

register = template.Library()


@register.filter
def magnitude(value: float) -> str:
    """Format a number of noises: ``12``, ``2.6``."""
    return f"{abs(value):.0f}" if abs(value) >= 10 else f"{abs(value):.1f}"


@register.simple_tag
def row_badge(row: Row) -> SafeString:
    """Show what the judge says of a chart's newest point."""
    if row.regression:
        change = row.regression.change
        return badge_html("regressed", signed_percent(change) if change is not None else "failed")
    if not row.verdict:
        return SafeString("")
    told = row.change is not None and row.verdict in {"improved", "regressed", "inconclusive"}
    return badge_html(row.verdict, signed_percent(row.change) if told else row.verdict)


@register.simple_tag
def unit_cell(value: MetricValue | None) -> SafeString:
    """Show a number with its unit, since a column has metrics of several systems."""
    if value is None or value.median is None or not unit(value.metric):
        return cell_html(value)
    return format_html('{} <span class="unit">{}</span>', cell_html(value), unit(value.metric))


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
    return format_html(
        '<a class="overlay-box" role="checkbox" aria-checked="{}" href="?{}#history">{} overlay</a>',
        "true" if shown else "false",
        query.urlencode(),
        "☑" if shown else "☐",
    )


@register.simple_tag
def point_row(point: Point, ends: tuple[float, float], targets: bool, sources: bool) -> SafeString:
    """Return a row of the table of points, with the columns that some point fills."""
    url = reverse("run", args=[point.run_id])
    marks = drawing.small([value for _number, value in point.compilations], *ends)
    differences = format_html(
        "{}{}",
        "; ".join(point.changed[:2]) or SafeString('<span class="dim">no difference</span>'),
        format_html(
            ' <span class="tag" title="{}">and {} more</span>',
            "; ".join(point.changed),
            len(point.changed) - 2,
        )
        if len(point.changed) > 2
        else "",
    )
    if not point.same_class:
        differences += format_html(
            ' <span class="tag" title="{}">different environment</span>',
            "device, driver or library versions differ from the newest point's; not part of its baseline",
        )
    source = (point.source or "upload") if point.uploaded else "runner"
    if point.file and point.file.filename:
        source = format_html('{}, <span class="file">{}</span>', source, point.file.filename)
    branch = point.other_branch
    warning = f"{point.warning}" if point.warning else ""
    return format_html(
        '<tr id="run-{}"{}><th scope="row">{}</th><td>{}{}</td><td class="num">{}{}</td><td>{}{}</td>'
        '<td>{}</td>{}<td class="host-name">{}</td><td class="long">{}</td>{}'
        '<td><a href="{}">{}</a></td></tr>',
        point.run_id,
        "" if point.same_class else SafeString(' class="other-class"'),
        moment(point.order_time),
        commit(point.commit),
        format_html(' <span class="tag" title="branch: shown, never a baseline">{}</span>', branch)
        if branch
        else "",
        value_html(point),
        format_html(' <span class="tag" title="{}">warning</span>', warning) if warning else "",
        marks if len(point.compilations) > 1 else "",
        format_html(' <span class="dim" title="in {0} processes">× {0}</span>', point.processes)
        if point.processes > 1
        else "",
        verdict_badge(point),
        format_html("<td>{}</td>", targets_html(point, brief=True)) if targets else "",
        point.host or "unknown",
        differences,
        format_html("<td>{}</td>", source) if sources else "",
        url,
        point.run_id,
    )


@register.simple_tag
def changed_bars(table: Table) -> SafeString:
    """Return the way from the total before to the total after as bars: code, fusion, draw, same binary."""
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
    floor = low - ((high - low) or abs(high) or 1.0) * 0.25
    bars = []
    for place, (tone, start, end) in enumerate(steps):
        top, foot = (max(start, end), min(start, end)) if start else (end, floor)
        y, bottom = (4 + 56 * (high - value) / (high - floor) for value in (top, foot))
        height, x = max(bottom - y, 1), place * 170 + 10
        bars.append(f'<rect class="{tone}" x="{x}" y="{y:.1f}" width="130" height="{height:.1f}"/>')
    return mark_safe(  # noqa: S308 — numbers  # nosec B308, B703
        '<svg class="changed-bars" viewBox="0 0 1000 62" preserveAspectRatio="none" height="62" role="img"'
        f' aria-label="from {base_us:.4g} to {head_us:.4g} µs, by the sums below">{"".join(bars)}</svg>'
    )


@register.simple_tag
def metric_row(value: MetricValue, shown: Metric) -> SafeString:
    """Return a row of the table of all metrics."""
    return format_html(
        '<tr{}><th scope="row"><a href="?metric={}">{}</a> <span class="dim">{}</span></th>'
        '<td class="num">{}</td><td class="num">{}</td><td>{}</td><td>{}</td>'
        '<td class="when"><a href="{}">{}</a></td></tr>',
        SafeString(' aria-current="true"') if value.metric == shown else "",
        quote(value.metric.name, safe=""),
        value.metric.title,
        value.metric.name,
        value_html(value),
        value.n,
        verdict_badge(value),
        targets_html(value),
        reverse("run", args=[value.run_id]),
        ago(value.order_time),
    )


@register.simple_tag
def json_block(content: Any, name: str) -> SafeString:
    """Return a data block for the page's script."""
    data = orjson.dumps(content).decode()
    for char in "<>&":  # a data block ends at the first "</script" that stands in it
        data = data.replace(char, f"\\u{ord(char):04x}")
    return format_html(
        '<script type="application/json" id="{}">{}</script>',
        name,
        mark_safe(data),  # noqa: S308 — escaped above  # nosec B308, B703
    )
