"""The table of a run's results."""

import math
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.safestring import SafeString

from hud.judging.compare.judged import REASONS
from hud.models import Point, PointFields, SidePoint
from hud.pages import query_string, streams
from hud.pages.backends_table import drawn_reach
from hud.pages.run.query import RunPage
from hud.pages.run.results import RunResults
from hud.pages.sparkline import change_interval
from hud.pages.tags import commit_range, path, targets_html, value_html, verdict_badge
from hud.points.summaries import LABELS
from hud.tables.formatting import address, better, long_name, number, signed_percent
from hud.tables.html import LOOKS, NOTHING, dim, element, icon_html, join, link, post_button, span, text
from hud.tables.table import Column, DataTable, Order

_Z_95 = 1.96


def _experiment(value: PointFields, page: RunPage) -> SafeString:
    """Return a link to the experiment, and in what it differs from the others of the page."""
    experiment, varying = value.experiment, page.results.varying
    where = streams.link(address(experiment.pk, "experiment"), metric=value.metric.name)
    facts = {name: getattr(experiment, name) for name in ("suite", "dtype", "mode", "backend")}
    facts["arch"] = experiment.arch or experiment.device
    about = join(*(facts[name] or f"unknown {name}" for name in facts if name in varying), by=" · ")
    title = text(experiment.title).replace(",", ",<wbr>").replace("[", "<wbr>[")
    name = f'<a href="{text(where)}#run-{page.run.pk}"{long_name(experiment.title)}>{title}</a>'
    return join(SafeString(name), span(about, "fact"))


def _metric(value: PointFields, page: RunPage) -> SafeString:
    facts = ["candidate" if value.side else "baseline"] if isinstance(value, SidePoint) else []
    facts += [f"{value.processes} processes"] if value.processes > 1 else []
    others = NOTHING
    if value.series_id in page.results.others:
        kind, count = page.results.others[value.series_id]
        query = urlencode({"show": kind, "q": value.experiment.case})
        others = link(f"?{query}#results", f"+{count}", css="count", title="other metrics of this experiment")
    return join(value.metric.title, others, span(", ".join(facts), "fact"))


def _value(value: PointFields, page: RunPage) -> SafeString:
    shown, was, warning = value_html(value, is_brief=isinstance(value, Point)), NOTHING, value.warning or ""
    if isinstance(value, Point) and value.level is not None:
        label = span("baseline ", "visually-hidden")
        was = span(join(label, number(value.level, value.metric), " → ", by=""), "was")
    note = span(warning, "reason")
    if warning in page.results.notes:
        place, _rows = page.results.notes[warning]
        note = link(f"#note-{place}", f"note {place}", css="tag", title=warning)
    explanation = _explanation(value, page) if value.value is None else NOTHING
    return join(was + shown, note, explanation)


def _explanation(value: PointFields, page: RunPage) -> SafeString:
    """Return which part of the compiler is at fault, and the button of a run that finds it."""
    button, cause = NOTHING, NOTHING
    if value.series_id in page.explanations:
        part, run = page.explanations[value.series_id]
        cause = link(address(run, "run"), f"at fault: {part}", css="reason", title=f"found by run {run}")
    if page.csrf and value.series_id in page.explainable and not page.active:
        fields = page.csrf + SafeString(f'<input type="hidden" name="series" value="{value.series_id}">')
        title = "Find the part of the compiler at fault in a new run, by CompilerBisector"
        button = post_button(address(page.run.pk, "run_explain"), fields, "Explain", title=title)
    return join(cause, button)


def _change(value: Point, _page: RunPage) -> SafeString:
    margin = _margin(value)
    tone = LOOKS[value.verdict][1] if value.verdict in LOOKS else ""
    change = span(signed_percent(value.change), f"change {tone}")
    return join(change, span(f"± {margin * 100:.1f}" if margin else "", "pm"))


def _margin(value: Point) -> float | None:
    """Return half the 95 % interval of a change, by the noise of one value and of the median of the level."""
    if value.change is None or not value.noise or value.metric.kind != "timing":
        return None
    level = math.pi / 2 / (value.level_points or 1)
    return float(_Z_95 * value.noise * math.sqrt(1 + level) * (1 + value.change))


def _plot(value: Point, page: RunPage) -> SafeString:
    margin = _margin(value)
    if margin is None:
        return NOTHING
    reach = drawn_reach(_changes(page))
    return change_interval(value.change, margin, 2 * (value.noise or 0.0), value.verdict, reach)


def _cause(value: Point, page: RunPage) -> SafeString:
    """Return the regression with its commits, the stream it was judged against if that is another one, or why
    it has no value or no verdict."""
    parts, place = [], f"experiment:{value.experiment.pk}"
    if value.series_id in page.results.regressions:
        pk, state, last_good_run, base, head = page.results.regressions[value.series_id]
        still = "still " if value.verdict == "unchanged" else ""
        parts.append(link(streams.link(path("regressions"), open=pk), f"{still}{state}", css="state"))
        if last_good_run:
            base_side, head_side = (f"run:{run}/{place}" for run in (last_good_run, page.run.pk))
            about = f" in {value.experiment.title}, {value.metric.title}"
            words = join("What changed", span(about, "visually-hidden"), by="")
            code = link(streams.link(path("code"), base=base_side, head=head_side), words)
            parts.append(span(join(commit_range(base, head), code), "fact"))
    against = f"against {value.level_stream.name}" if value.level_stream else ""
    why = REASONS.get(value.verdict_reason or "", "")
    parts.append(span(value.reason if value.value is None else "", "reason"))
    return join(*parts, span(against, "fact"), span(why, "fact"))


def _factor(factor: float | None) -> str:
    """Format a change in units of the noise; beyond a hundred, digits say nothing."""
    return "" if factor is None else f"{abs(factor):.1f}" if abs(factor) < 100 else "> 100"


def _changes(page: RunPage) -> list[float]:
    rows = page.results.rows
    return [row.change for row in rows if isinstance(row, Point) and row.change is not None]


def _is_judged(page: RunPage) -> bool:
    return bool(_changes(page))


def _has_causes(page: RunPage) -> bool:
    return _is_judged(page) or any(isinstance(row, Point) and row.value is None for row in page.results.rows)


RESULTS = DataTable[Any, RunPage](
    Column("", "Experiment", draw=_experiment, is_head=True, sort="experiment"),
    Column(
        "", "Metric", draw=_metric, sort="metric",
        cell_tooltip=lambda value: f"{value.metric.name}, {better(value.metric)}",
    ),
    Column("", "Value", draw=_value, css="num", sort="value"),
    Column(
        "", "Change, 95 %", draw=_change, css="num", sort="change", label=" ", only=_is_judged,
        cell_tooltip=lambda value: value.noise and f"noise {value.noise * 100:.2f} %",
    ),
    Column("", "Grey: noise", draw=_plot, css="fpc", hides_title=True, only=_is_judged),
    Column("", "× noise", "factor", show=_factor, css="num times", sort="noise", only=_is_judged),
    Column(
        "", "Verdict", draw=lambda value, _page: verdict_badge(value, brief=True),
        only=lambda page: not page.run.is_ab,
    ),
    Column(
        "", "Target", draw=lambda value, _page: targets_html(value, brief=True),
        only=lambda page: any(row.targets for row in page.results.rows),
    ),
    Column("", "Since, cause", draw=_cause, css="cause", only=_has_causes),
)  # fmt: skip


def results_html(request: HttpRequest, page: RunPage) -> SafeString:
    """Return the table, in groups of what the points show where it is not filtered or sorted."""
    results = page.results
    kinds, shown = iter(results.kinds), ""

    def frame(_value: PointFields, cells: str) -> str:
        nonlocal shown
        before, shown = shown, next(kinds, "")
        head = _group(results, shown) if shown != before else NOTHING
        return f"{head}<tr>{cells}</tr>"

    order = Order(results.filters.sort, query_string.without(request.GET, "sort", "page"), "#results")
    return RESULTS.html(results.rows, page, order=order, css="results", data_rows="data-rows", frame=frame)


def _group(results: RunResults, kind: str) -> SafeString:
    """Return the line above the rows of a kind: how many, of how many experiments, and the link to all."""
    count, (icon, word, _words) = results.counts[kind], LABELS[kind]
    values, experiments = (
        f"{n} {name}{'s' * (n != 1)}"  # an experiment may have values in several groups
        for n, name in ((count.points, "value"), (count.experiments, "experiment"))
    )
    every = link(f"?show={kind}#results", "all") if count.points > 1 else NOTHING
    cell = join(icon_html(icon), element("b", word.capitalize()), dim(f"{values} of {experiments}"), every)
    return element("tr", element("th", cell, scope="rowgroup", colspan="20"), css="fold")
