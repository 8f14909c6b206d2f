"""The table of a run's results on its page."""

from typing import Any

from django.utils.safestring import SafeString

from hud.models import Point, PointFields, SidePoint
from hud.pages import streams
from hud.pages.run.query import RunPage
from hud.tables.formatting import address, better, long_name, number
from hud.tables.html import NOTHING, join, link, post_button, span, text
from hud.tables.table import Column, DataTable
from hud.templatetags.hud_tags import REASONS, commit_range, path, targets_html, value_html, verdict_badge


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


def _metric(value: PointFields, _page: RunPage) -> SafeString:
    facts = ["candidate" if value.side else "baseline"] if isinstance(value, SidePoint) else []
    facts += [f"{value.processes} processes"] if value.processes > 1 else []
    return join(value.metric.title, span(", ".join(facts), "fact"))


def _value(value: PointFields, page: RunPage) -> SafeString:
    shown, was, warning = value_html(value), NOTHING, value.warning or ""
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


def _verdict(value: Point, page: RunPage) -> SafeString:
    """Return the verdict, the regression with its commits, the stream it was judged against if that is
    another one, or why it is none."""
    parts, place = [verdict_badge(value)], f"experiment:{value.experiment.pk}"
    if value.series_id in page.results.regressions:
        pk, state, last_good_run, base, head = page.results.regressions[value.series_id]
        still = "still " if value.verdict == "unchanged" else ""
        parts.append(link(streams.link(path("regressions"), open=pk), f"{still}{state}", css="state"))
        if last_good_run:
            sides = f"base=run:{last_good_run}/{place}&head=run:{page.run.pk}/{place}"
            about = f" in {value.experiment.title}, {value.metric.title}"
            words = join("What changed", span(about, "visually-hidden"), by="")
            code = link(f"{path('code')}?{sides}", words)
            parts.append(span(join(commit_range(base, head), code), "fact"))
    against = f"against {value.level_stream.name}" if value.level_stream else ""
    why = REASONS.get(value.verdict_reason or "", "")
    return join(*parts, span(against, "fact"), span(why, "fact"))


def _factor(factor: float | None) -> str:
    """Format a change in units of the noise; beyond a hundred, digits say nothing."""
    return "" if factor is None else f"{abs(factor):.1f}" if abs(factor) < 100 else "> 100"


RESULTS = DataTable[Any, RunPage](
    Column("", "Experiment", draw=_experiment, is_head=True, sort="experiment"),
    Column(
        "", "Metric", draw=_metric, sort="metric",
        cell_tooltip=lambda value: f"{value.metric.name}, {better(value.metric)}",
    ),
    Column("", "Value", draw=_value, css="num", sort="value"),
    Column("", "Verdict", draw=_verdict, sort="change", only=lambda page: not page.run.is_ab),
    Column(
        "", "× noise", "factor", show=_factor, css="num", sort="noise",
        only=lambda page: any(isinstance(row, Point) and row.factor is not None for row in page.results.rows),
    ),
    Column(
        "", "Target", draw=lambda value, _page: targets_html(value, brief=True),
        only=lambda page: any(row.targets for row in page.results.rows),
    ),
)  # fmt: skip
