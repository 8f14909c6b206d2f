"""The tables of the regressions: the list of causes, and the steps of a bisect."""

from dataclasses import dataclass

from django.utils.safestring import SafeString

from hud.judging.regressions.read import CauseLines
from hud.models import Bisect, BisectStep, Regression
from hud.pages import streams
from hud.pages.regressions.query import RegressionsPage
from hud.tables.formatting import address, signed_percent
from hud.tables.html import NOTHING, dim, element, join, link, span, text
from hud.tables.table import Column, DataTable
from hud.templatetags.hud_tags import move_line

_CLOSED = ("resolved", "accepted", "dismissed")  # tabs that have no sections


@dataclass(frozen=True)
class _Inbox:
    page: RegressionsPage
    may_decide: bool
    others: str  # the rest of the page's query, after an &

    def address(self, one: Regression) -> str:
        return f"{streams.link('', open=one.pk)}{self.others}"


def change_html(one: Regression) -> SafeString:
    """Return the change of a regression, or that it failed."""
    icon = "↗" if one.kind == "drift" else "▼"
    return span(
        "✗ failed" if one.kind == "failure" else f"{icon} {signed_percent(one.change)}", "change worse"
    )


def _box(ids: object, name: str) -> SafeString:
    return SafeString(f'<input type="checkbox" name="ids" value="{ids}" aria-label="Select {text(name)}">')


def _select(cause: CauseLines, _inbox: _Inbox) -> SafeString:
    count = cause.experiments
    return _box(cause.ids, f"all {count} experiments" if count > 1 else cause.first.series.experiment.title)


def _cause(cause: CauseLines, inbox: _Inbox) -> SafeString:
    one, count = cause.first, cause.experiments
    experiment, more = one.series.experiment, len(cause.lines) - 1
    name = f"{count} experiments" if count > 1 else experiment.title
    facts = (experiment.suite, experiment.backend, experiment.arch or "unknown arch")
    metric = one.series.metric.title + (f" and {more} more" if more else "")
    words = cause.words or join(metric, one.cause, by=": ")
    return join(link(inbox.address(one), name), dim(" · ".join(facts)), span(words, "fact"))


def _change(cause: CauseLines, _inbox: _Inbox) -> SafeString:
    factor = cause.first.factor
    return join(change_html(cause.first), span(f"{factor:.0f} × noise" if factor else "", "fact"))


def _owner(cause: CauseLines, _inbox: _Inbox) -> SafeString:
    name = cause.first.owner.get_username() if cause.first.owner else ""
    return span(name if len(name) <= 12 else f"{name[:11]}…", "owner", title=name)


_CAUSES = DataTable[CauseLines, _Inbox](
    Column("", "Select", draw=_select, hides_title=True, only=lambda inbox: inbox.may_decide),
    Column("", "Experiment and cause", draw=_cause, is_head=True),
    Column(
        "", "Last results", cell_css="spark-cell",
        draw=lambda cause, _inbox: move_line(cause.first.recent, cause.first.before, cause.first.points),
    ),
    Column("", "Change", draw=_change, css="num"),
    Column("", "Runs", "first.points", css="num", tooltip="runs since it moved"),
    Column("", "State", "first.state", show=lambda state: span(state, "state")),
    Column("", "Owner", draw=_owner),
)  # fmt: skip


def _members(cause: CauseLines, inbox: _Inbox, is_open: bool) -> str:
    """Return a row with all regressions of a cause, each with its own box and link."""
    shown = inbox.page.detail.regression if inbox.page.detail else None
    items = []
    for one in cause.lines:
        title, metric = one.series.experiment.title, one.series.metric.title
        box = _box(one.pk, f"{title}, {metric}") if inbox.may_decide else NOTHING
        name = link(inbox.address(one), title, aria_current="true" if one is shown else "")
        items.append(element("li", join(box, name, dim(metric), change_html(one), span(one.state, "state"))))
    return (
        f'<tr class="members"><td colspan="7"><details{" open" if is_open else ""}>'
        f"<summary>{len(items)} regressions</summary>"
        f'<ul class="plain">{join(*items)}</ul></details></td></tr>'
    )


def causes_html(page: RegressionsPage, tab: str, *, may_decide: bool, others: str) -> SafeString:
    """Return the table of causes under their headings, with the members of those of several experiments."""
    inbox = _Inbox(page, may_decide, others)
    current = page.detail.cause if page.detail else None

    def frame(cause: CauseLines, cells: str) -> str:
        is_current = cause is current
        attribute = ' aria-current="true"' if is_current else ""
        members = _members(cause, inbox, is_current) if cause.experiments > 1 else ""
        return f"<tr data-row{attribute}>{cells}</tr>{members}"

    body = ""
    for title, causes in page.sections:
        if tab not in _CLOSED:
            heading = join(title, element("span", len(causes), css="count"))
            body += f'<tr class="fold"><th colspan="7" scope="rowgroup">{heading}</th></tr>'
        body += _CAUSES.body(causes, inbox, frame)
    return SafeString(
        '<div class="scroll"><table class="inbox-list"><caption class="visually-hidden">'
        "Most certain and largest first; one row for each cause</caption>"
        f"<thead><tr>{_CAUSES.head(inbox)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _build(build: dict[str, str]) -> SafeString:
    about = (
        join(build["interpreter"], build["differs"], by=", ") if build.get("differs") else build.get("date")
    )
    return join(build["torch"], dim(about))


def _step_change(step: BisectStep, _bisect: Bisect) -> SafeString:
    ends = " to ".join(map(signed_percent, step.interval)) if step.interval else ""
    return join(signed_percent(step.change), dim(ends))


STEPS = DataTable[BisectStep, Bisect](
    Column("", "Baseline", draw=lambda step, bisect: _build(bisect.builds[step.base])),
    Column("", "Candidate", draw=lambda step, bisect: _build(bisect.builds[step.head]), label="→"),
    Column("", "Change", draw=_step_change, css="num"),
    Column("", "Result", "answer"),
    Column("", "Run", "run_id", show=lambda pk: pk and link(address(pk, "run"), pk), label="run"),
)
