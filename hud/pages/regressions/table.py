"""The tables of the regressions: the list of causes, and the steps of a bisect."""

from django.utils.safestring import SafeString

from hud.judging.comparison import MetricComparison
from hud.judging.kernels.table import CauseGroup, KernelBar, short_name
from hud.judging.regressions.commits import RankedCommit
from hud.judging.regressions.groups import CauseLines
from hud.models import Bisect, BisectStep, Regression
from hud.pages import streams
from hud.pages.regressions.detail import Kernels
from hud.pages.regressions.query import RegressionsPage
from hud.pages.sparkline import interval
from hud.pages.tags import commit, commit_range, regression_line
from hud.tables.formatting import run_link, signed_percent
from hud.tables.html import badge_html, code, dim, element, icon_html, join, link, span, text
from hud.tables.table import Column, DataTable

_CLOSED = ("resolved", "accepted", "dismissed")  # tabs that have no sections


def change_html(one: Regression) -> SafeString:
    """Return the change of a regression, or that it failed."""
    if one.verdict == "failed":
        return span(join(icon_html("cross"), "failed"), "change worse")
    change = signed_percent(one.change)
    if one.verdict == "inconclusive":
        return span(join(icon_html("question"), f"inconclusive, {change}"), "change doubt")
    return span(join(icon_html("drift" if one.kind == "drift" else "worse"), change), "change worse")


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
    own = [line.series.experiment for line in cause.lines]
    backends, archs = ({getattr(each, part): None for each in own} for part in ("backend", "arch"))
    on = f"{len(backends)} backends" if len(backends) > 2 else ", ".join(backends)
    facts = (experiment.suite, on, ", ".join(filter(None, archs)) or "unknown arch")
    metric = one.series.metric.title + (f" and {more} more" if more else "")
    words = join(metric, cause.words or one.cause, by=": ")
    return join(_link(one, page, name), dim(" · ".join(facts)), span(words, "fact"))


def _change(one: Regression) -> SafeString:
    return join(change_html(one), span(f"{one.factor:.0f} × noise" if one.factor else "", "fact"))


def _commits(one: Regression) -> SafeString:
    old, new = (run.commit if run else "" for run in (one.last_good_run, one.first_run))
    return commit_range(old, new, f"?open={one.pk}#commits")


def _owner(name: str) -> SafeString:
    return span(name if len(name) <= 12 else f"{name[:11]}…", "owner", title=name)


_CAUSES = DataTable[CauseLines, RegressionsPage](
    Column("", "Select", _select, hides_title=True, only=lambda page: page.may_decide),
    Column("", "Experiment and cause", draw=_cause, is_head=True),
    Column("", "Last results", "first", show=regression_line, cell_css="spark-cell"),
    Column("", "Change", "first", show=_change, css="num"),
    Column("", "Runs", "first.points", css="num", tooltip="runs since it moved"),
    Column("", "Commits", draw=lambda cause, _page: _commits(cause.first)),
    Column("", "State", "first.state", show=lambda state: span(state, "state")),
    Column("", "Owner", "first.owner?.username", show=_owner),
)  # fmt: skip


def _members(cause: CauseLines, page: RegressionsPage) -> str:
    """Return a row with all regressions of a cause, each with its own link."""
    return (
        f'<tr class="members"><td colspan="8"><details><summary>{len(cause.lines)} regressions</summary>'
        f"{members_html(cause, page)}</details></td></tr>"
    )


def members_html(cause: CauseLines, page: RegressionsPage) -> SafeString:
    shown, items = page.detail.regression if page.detail else None, []
    for one in cause.lines:
        name = _link(one, page, one.series.experiment.title, aria_current="true" if one == shown else "")
        backend = f"{one.series.experiment.backend}, {one.series.experiment.arch}: {one.series.metric.title}"
        items.append(element("li", join(name, dim(backend), change_html(one), span(one.state, "state"))))
    return element("ul", join(*items, by=""), css="plain")


def causes_html(page: RegressionsPage, tab: str) -> SafeString:
    """Return the table of causes under their headings, with the members of those of several experiments."""

    def frame(cause: CauseLines, cells: str) -> str:
        members = _members(cause, page) if cause.experiments > 1 else ""
        return f"<tr data-row>{cells}</tr>{members}"

    body = ""
    for title, causes in page.sections:
        if tab not in _CLOSED:
            heading = join(title, element("span", len(causes), css="count"))
            body += f'<tr class="fold"><th colspan="8" scope="rowgroup">{heading}</th></tr>'
        body += _CAUSES.body(causes, page, frame)
    return SafeString(
        '<div class="scroll"><table class="inbox-list"><caption class="visually-hidden">'
        "Most certain and largest first; one row for each cause</caption>"
        f"<thead><tr>{_CAUSES.head(page)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _build(build: dict[str, str]) -> SafeString:
    named = join(build["interpreter"], build["differs"], by=", ") if build.get("differs") else ""
    about = build.get("commits") or named or build.get("date")
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


def _bar(pair: tuple[KernelBar, CauseGroup]) -> SafeString:
    bar = pair[0]
    about = f'class="{bar.tone}" x="{bar.start:.1f}" width="{bar.width:.1f}" y="0" height="10"'
    svg = '<svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
    return SafeString(f"{svg}<rect {about}/></svg>")


def _times(pair: tuple[KernelBar, CauseGroup], shown: Kernels) -> SafeString:
    change = pair[0].change
    ends = (change.base_us, change.head_us) if change else (None, None)
    base, head = map(shown.table.written, ends)
    return join(dim(f"{base} →"), element("b", head))


def _is_timed(shown: Kernels) -> bool:
    return shown.table.timed


KERNELS = DataTable[tuple[KernelBar, CauseGroup], Kernels](
    Column("", "Kernel", lambda pair: code(short_name(pair[0].name)), is_head=True),
    Column("", "Before → after", draw=_times, css="num", only=_is_timed),
    Column(
        "", "Change", css="num", only=_is_timed,
        draw=lambda pair, shown: span(shown.table.signed(pair[0].change_us), pair[0].tone),
    ),
    Column("", "From total to total", _bar, css="bars", hides_title=True, only=_is_timed),
    Column("", "Why", lambda pair: join(pair[1].title, dim(pair[0].config))),
)  # fmt: skip


def _title(one: RankedCommit) -> SafeString:
    about = one.why or "touches nothing that the kernels or the metric name"
    return join(element("b", one.commit.title) if one.score else dim(one.commit.title), span(about, "fact"))


COMMITS = DataTable[RankedCommit](
    Column("", "Title, and why it stands here", _title, is_head=True),
    Column("", "Commit, author", lambda one: join(commit(one.commit.sha), span(one.commit.author, "fact"))),
    Column("", "Touched", lambda one: join(*(span(path, "fact file") for path in one.touched[:3]))),
)  # fmt: skip


def _answer(one: MetricComparison) -> str:
    return f"Code at equal choices, {one.metric.title}" if one.code else one.metric.title


def _drawn(one: MetricComparison) -> SafeString | str:
    if one.change is None or one.low is None or one.high is None:
        return ""
    reach, tone = max(-one.low, min(one.high, 2.0), 0.04), {True: "g", False: "w", None: ""}[one.better]
    return interval(one.change, one.low, one.high, axis=(-reach, reach), noise=(-0.02, 0.02), tone=tone)


def _ends(one: MetricComparison) -> SafeString:
    ends = f"{signed_percent(one.low)} to {signed_percent(one.high)}" if one.low is not None else ""
    return join(element("b", signed_percent(one.change)), span(ends, "fact"))


ANSWERS = DataTable[MetricComparison](
    Column("", "Answer", _answer, is_head=True),
    Column("", "Mean, 95 %", _ends, css="num"),
    Column("", "Grey: no change", _drawn),
    Column("", "Verdict", lambda one: join(badge_html(one.word), dim(one.cause))),
)
