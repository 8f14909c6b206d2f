"""The tables of the regressions: the list of causes, and the steps of a bisect."""

from django.utils.safestring import SafeString

from hud.judging.regressions.groups import CauseLines
from hud.models import Bisect, BisectStep, Regression
from hud.pages import streams
from hud.pages.regressions.query import RegressionsPage
from hud.pages.tags import move_line
from hud.tables.formatting import run_link, signed_percent
from hud.tables.html import dim, element, join, link, span, text
from hud.tables.table import Column, DataTable

_CLOSED = ("resolved", "accepted", "dismissed")  # tabs that have no sections


def change_html(one: Regression) -> SafeString:
    """Return the change of a regression, or that it failed."""
    if one.verdict == "inconclusive":
        return span(f"? inconclusive, {signed_percent(one.change)}", "change doubt")
    icon = "↗" if one.kind == "drift" else "▼"
    return span(
        "✗ failed" if one.verdict == "failed" else f"{icon} {signed_percent(one.change)}", "change worse"
    )


def _select(cause: CauseLines) -> SafeString:
    count = cause.experiments
    name = f"all {count} experiments" if count > 1 else cause.first.series.experiment.title
    about = f'value="{cause.ids}" aria-label="Select {text(name)}"'
    return SafeString(f'<input type="checkbox" name="ids" {about}>')


def _link(regression: Regression, page: RegressionsPage, name: str, **about: str) -> SafeString:
    return link(f"{streams.link('', open=regression.pk)}{page.others}", name, **about)


def _cause(cause: CauseLines, page: RegressionsPage) -> SafeString:
    one, count = cause.first, cause.experiments
    experiment, more = one.series.experiment, len(cause.lines) - 1
    name = f"{count} experiments" if count > 1 else experiment.title
    facts = (experiment.suite, experiment.backend, experiment.arch or "unknown arch")
    metric = one.series.metric.title + (f" and {more} more" if more else "")
    words = cause.words or join(metric, one.cause, by=": ")
    return join(_link(one, page, name), dim(" · ".join(facts)), span(words, "fact"))


def _change(one: Regression) -> SafeString:
    return join(change_html(one), span(f"{one.factor:.0f} × noise" if one.factor else "", "fact"))


def _owner(name: str) -> SafeString:
    return span(name if len(name) <= 12 else f"{name[:11]}…", "owner", title=name)


_CAUSES = DataTable[CauseLines, RegressionsPage](
    Column("", "Select", _select, hides_title=True, only=lambda page: page.may_decide),
    Column("", "Experiment and cause", draw=_cause, is_head=True),
    Column(
        "", "Last results", "first", cell_css="spark-cell",
        show=lambda one: move_line(one.recent, one.before, one.points),
    ),
    Column("", "Change", "first", show=_change, css="num"),
    Column("", "Runs", "first.points", css="num", tooltip="runs since it moved"),
    Column("", "State", "first.state", show=lambda state: span(state, "state")),
    Column("", "Owner", "first.owner?.username", show=_owner),
)  # fmt: skip


def _members(cause: CauseLines, page: RegressionsPage, is_open: bool) -> str:
    """Return a row with all regressions of a cause, each with its own box and link."""
    shown = page.detail.regression if page.detail else None
    items = []
    for one in cause.lines:
        title, metric = one.series.experiment.title, one.series.metric.title
        name = _link(one, page, title, aria_current="true" if one is shown else "")
        items.append(element("li", join(name, dim(metric), change_html(one), span(one.state, "state"))))
    return (
        f'<tr class="members"><td colspan="7"><details{" open" if is_open else ""}>'
        f"<summary>{len(items)} regressions</summary>"
        f'<ul class="plain">{join(*items)}</ul></details></td></tr>'
    )


def causes_html(page: RegressionsPage, tab: str) -> SafeString:
    """Return the table of causes under their headings, with the members of those of several experiments."""
    current = page.detail.cause if page.detail else None

    def frame(cause: CauseLines, cells: str) -> str:
        is_current = cause is current
        attribute = ' aria-current="true"' if is_current else ""
        members = _members(cause, page, is_current) if cause.experiments > 1 else ""
        return f"<tr data-row{attribute}>{cells}</tr>{members}"

    body = ""
    for title, causes in page.sections:
        if tab not in _CLOSED:
            heading = join(title, element("span", len(causes), css="count"))
            body += f'<tr class="fold"><th colspan="7" scope="rowgroup">{heading}</th></tr>'
        body += _CAUSES.body(causes, page, frame)
    return SafeString(
        '<div class="scroll"><table class="inbox-list"><caption class="visually-hidden">'
        "Most certain and largest first; one row for each cause</caption>"
        f"<thead><tr>{_CAUSES.head(page)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _build(build: dict[str, str]) -> SafeString:
    about = (
        join(build["interpreter"], build["differs"], by=", ") if build.get("differs") else build.get("date")
    )
    return join(build["torch"], dim(about))


def _step_change(step: BisectStep) -> SafeString:
    ends = " to ".join(map(signed_percent, step.interval)) if step.interval else ""
    return join(signed_percent(step.change), dim(ends))


STEPS = DataTable[BisectStep, Bisect](
    Column("", "Baseline", draw=lambda step, bisect: _build(bisect.builds[step.base])),
    Column("", "Candidate", draw=lambda step, bisect: _build(bisect.builds[step.head]), label="→"),
    Column("", "Change", _step_change, css="num"),
    Column("", "Result", "answer"),
    Column("", "Run", "run_id", show=lambda pk: pk and run_link(pk), label="run"),
)
