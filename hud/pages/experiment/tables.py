"""Tables of the experiment page, and drawings that are no charts over time."""

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any
from urllib.parse import quote

from django.utils.safestring import SafeString

from hud.judging.kernels.table import KernelTable, short_name
from hud.models import Experiment, Metric, Point
from hud.pages import streams
from hud.pages.charts import drawing
from hud.pages.experiment.compilations import Compilations
from hud.pages.experiment.query import Backend, ExperimentPage, TableRow
from hud.pages.tags import cell_html, commit, targets_html, value_html, verdict_badge
from hud.runs.branches import other_branch
from hud.tables.formatting import address, ago, moment, run_link
from hud.tables.html import NOTHING, badge_html, dim, element, icon_html, join, link, span
from hud.tables.table import Column, DataTable
from runner.formats.readers.xla import OF_OPERATION

_BARS = ("before", "code", "fusion", "choices", "same", "after")  # as short as they fit
_MOST_KERNELS = 10  # in the table of choices
_OF_OPERATIONS = {
    "self_cpu_time_s": "Self CPU",
    "total_cpu_time_s": "CPU",
    "self_cuda_time_s": "Self CUDA",
    "total_cuda_time_s": "CUDA",
    "num_of_calls": "Calls",
}
_Operation = tuple[str, dict[str, Point]]  # its points by the end of their metrics
_CURRENT = ' aria-current="true"'
_OTHER_CLASS = "device, driver or library versions differ from the newest point's; not part of its baseline"


def _page_of(experiment: Experiment, metric: Metric | None) -> str:
    return streams.link(address(experiment.pk, "experiment"), metric=metric and metric.name)


_VALUE = Column[Point, ExperimentPage]("", "Value", value_html, css="num")
_VERDICT = Column[Point, ExperimentPage]("", "Verdict", verdict_badge)
_NEWEST = Column[Point, ExperimentPage](
    "", "Newest", lambda point: run_link(point.run_id, ago(point.order_time)), cell_css="when"
)


def _metric(point: Point, page: ExperimentPage) -> SafeString:
    address = f"?stream={page.stream.name}&amp;metric={quote(point.metric.name, safe='')}"
    title, name = escape(point.metric.title), escape(point.metric.name)
    return SafeString(f'<a href="{address}">{title}</a> <span class="dim">{name}</span>')


METRICS = DataTable[Point, ExperimentPage](
    Column("", "Metric", draw=_metric, is_head=True),
    _VALUE,
    Column("", "n", "samples", css="num"),
    _VERDICT,
    Column("", "Target", targets_html),
    _NEWEST,
)


def operations(page: ExperimentPage) -> tuple[str, SafeString]:
    """Return the kind and the table of the operations that a profile named one by one, the slowest first; ''
    without any."""
    lines: dict[str, dict[str, Point]] = {}
    kind = ""
    for point in page.metrics:
        if match := OF_OPERATION.fullmatch(point.metric.name):
            kind = match["map"]
            lines.setdefault(match["operation"], {})[match["metric"]] = point

    def cell(metric: str, line: _Operation) -> SafeString:
        return cell_html(line[1].get(metric), with_unit=True)

    def time_of(line: _Operation) -> float:
        times = (line[1].get(f"self_{device}_time_s") for device in ("cuda", "cpu"))
        return sum(point.value or 0.0 for point in times if point)

    measured = {metric for line in lines.values() for metric in line}
    table = DataTable[_Operation, ExperimentPage](
        Column("", "Operator", lambda line: line[0], is_head=True),
        *(
            Column("", _OF_OPERATIONS[name], partial(cell, name), css="num")
            for name in _OF_OPERATIONS
            if name in measured
        ),
    )
    slowest_first = sorted(lines.items(), key=time_of, reverse=True)
    return kind, table.html(slowest_first, page, scroll="scroll tall")


def _device(point: Point) -> SafeString:
    experiment = point.experiment
    return link(_page_of(experiment, point.metric), experiment.arch or experiment.device)


DEVICES = DataTable[Point, ExperimentPage](
    Column("", "Arch", _device, is_head=True),
    Column("", "Metric", "metric.title"),
    _VALUE,
    _VERDICT,
    Column("", "Target", lambda point: targets_html(point, brief=True)),
    _NEWEST,
)


def backends(page: ExperimentPage, others: str) -> SafeString:
    """Return the table of the case's backends; `others` is the page's query without overlays."""

    def name(line: Backend, page: ExperimentPage) -> SafeString:
        text = line[0].backend or "unknown"
        is_own = line[0] == page.experiment
        return element("b", text) if is_own else link(_page_of(line[0], page.metric), text)

    def overlay(line: Backend, page: ExperimentPage) -> SafeString:
        """Return the link that draws a backend beside this one, or takes it away again."""
        if line[0] == page.experiment:
            return NOTHING
        shown = line[0] in page.overlaid
        ids = [one.pk for one in page.overlaid if one != line[0]] + [line[0].pk] * (not shown)
        query = f"overlay={'%2C'.join(map(str, ids))}{others}" if ids else others[1:]
        label, checked = ("check", "true") if shown else ("box", "false")
        words = join(icon_html(label), "overlay")
        return link(f"?{query}#history", words, css="overlay-box", role="checkbox", aria_checked=checked)

    table = DataTable[Backend, ExperimentPage](
        Column("", "Backend", draw=name, is_head=True),
        *(
            Column("", column.title, draw=partial(_cell, at), css="num")
            for at, column in enumerate(page.columns)
        ),
        Column("", "Overlay", draw=overlay),
    )
    frame = framed(lambda line: line[0] == page.experiment)
    return table.html(page.backends, page, css="backends", frame=frame)


def _cell(at: int, line: Backend, page: ExperimentPage) -> SafeString:
    """Return a cell, with what tells it from the column's usual metric."""
    point = line[1][at]
    return join(cell_html(point, with_unit=True), point and dim(page.columns[at].metrics[point.metric.name]))


def framed(is_current: Callable[[Any], bool]) -> Callable[[Any, str], str]:
    """Return what makes rows of cells, and marks the current one."""
    return lambda row, cells: f"<tr{_CURRENT if is_current(row) else ''}>{cells}</tr>"


def _commit(row: TableRow) -> SafeString:
    return join(
        commit(row.point.run.commit),
        span(other_branch(row.point.run.branch), "tag", "branch: shown, never a baseline"),
        span("rerun" if row.point.rerun else "", "tag", "shown, never a baseline"),
    )


def _value(row: TableRow) -> SafeString:
    warning = row.point.warning
    return join(value_html(row.point), span("warning" if warning else "", "tag", warning))


def _compilations(row: TableRow, page: ExperimentPage) -> SafeString:
    """Draw the compilations of a point as marks, on one axis of all points."""
    measured = [value for value in row.point.compilation_values if value is not None]
    marks = drawing.small(measured, *page.ends) if len(measured) > 1 else NOTHING
    n = row.point.processes
    return join(marks, span(f"× {n}" if n > 1 else "", "dim", title=f"in {n} processes"))


def _target(row: TableRow, page: ExperimentPage) -> SafeString:
    """Show whether the target in the head is met, or which one is where they differ."""
    point = row.point
    if page.target and point.targets:
        return badge_html(point.met, title=point.targets[0].name)
    return targets_html(point, brief=True)


def _differences(row: TableRow) -> SafeString:
    more = len(row.changed) - 2
    return join(
        "; ".join(row.changed[:2]) or dim("no difference"),
        span(f"and {more} more" if more > 0 else "", "tag", "; ".join(row.changed)),
        span("" if row.same_class else "different environment", "tag", _OTHER_CLASS),
    )


POINTS = DataTable[TableRow, ExperimentPage](
    Column("", "Time (UTC)", "point.order_time", show=moment, is_head=True),
    Column("", "Commit", _commit),
    Column("", lambda page: page.metric and page.metric.title, _value, css="num"),
    Column("", "Compilations", draw=_compilations),
    Column("", "Result", "point", show=verdict_badge),
    Column("", lambda page: page.target or "Target", draw=_target, only=lambda page: page.target is not None),
    Column("", "Host", lambda row: row.point.run.host_name or "unknown", cell_css="host-name"),
    Column("", "Environment, differences only", _differences, cell_css="long"),
    Column(
        "", "Source", "point.run", only=lambda page: any(row.point.run.upload_id for row in page.points),
        show=lambda run: (run.source or "upload") if run.upload_id else "runner",
    ),
    Column("", "Run", "point.run_id", show=run_link),
)  # fmt: skip


def frame_of_point(row: TableRow, cells: str) -> str:
    css = "" if row.same_class else ' class="other-class"'
    return f'<tr id="run-{row.point.run_id}"{css}>{cells}</tr>'


def changed_bars(table: KernelTable) -> SafeString:
    """Return the way from the total before to the total after as labelled bars."""
    base_us, head_us = table.attribution.base.busy_us, table.attribution.head.busy_us
    if base_us is None or head_us is None:
        return SafeString("")
    steps, running = [("whole", 0.0, base_us)], base_us
    for one in table.sums:
        tone = "draw" if one.icon == "draw" else "slower" if one.change_us > 0 else "faster"
        steps.append(("same" if one.icon == "same" else tone, running, running + one.change_us))
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
        value = table.written(end) if tone == "whole" else table.signed(end - start)
        texts += [
            f'<text class="middle" x="{x + 6.5}%" y="{at:.1f}">{text}</text>'
            for at, text in ((y - 3, value), (84, _BARS[place]))
        ]
    return SafeString(
        f'<svg class="plot changed-bars" height="88" role="img" aria-label="from {base_us:.4g} to'
        f' {head_us:.4g} µs, by the sums below">{"".join(bars + texts)}</svg>'
    )


def choice_rows(compilations: Compilations) -> SafeString:
    """Return the rows of the table of choices, those of a kernel together."""
    rows = []
    for kernel in compilations.chosen[:_MOST_KERNELS]:
        span = f'rowspan="{len(kernel.choices)}"'
        name = f'<code title="{escape(kernel.name)}">{escape(short_name(kernel.name))}</code>'
        before = f'<th scope="rowgroup" {span}>{name}</th>'
        after = f'<td class="num" {span}>{f"{kernel.lost_us:.2f}".replace("-", "−")}</td>'
        for choice in kernel.choices:
            rows.append(
                f"<tr>{before}<td>{escape(choice.config or choice.choice)}</td>"
                f'<td class="num">{choice.n} of {compilations.counted}</td>'
                f'<td class="num">{choice.median_us:.2f}</td>{after}</tr>'
            )
            before = after = ""
    return SafeString("".join(rows))
