"""Template tags and filters of all pages: numbers, times, badges, charts, commits, and the head.

Commits link to `HUD_REPO_URL` where it is set, else to the runs of the commit or range.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any
from urllib.parse import quote

from django import template
from django.conf import settings
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.judging.backlog import waiting
from hud.judging.compare.judged import REASONS
from hud.judging.kernels import table as kernel_table
from hud.judging.regressions.read import Scope, count
from hud.models import FIRST_RUN_ONLY, NIGHTLY, Point, PointFields, Regression
from hud.pages import streams
from hud.pages.backends_table import colour
from hud.pages.query_string import without
from hud.pages.sparkline import sparkline as draw_line
from hud.points.facts import fact_name
from hud.points.nights import SHORT_COMMIT
from hud.points.streams import front, with_results
from hud.points.targets import AppliedTarget
from hud.tables import formatting, html
from hud.tables.formatting import ago, bytes_text, moment, number, percent, quantity, signed_percent, unit
from hud.tables.html import LOOKS, NOTHING, WORDS, badge_html, code, element, icon_html, join, link, span
from hud.tables.table import Column, DataTable
from runner.schema.records import quality_words

register = template.Library()
register.filter("colour", colour)
_FORMATTING = """address ago better bytes_text duration long_name magnitude milliseconds moment number p_value
    percent plain plain_count quantity seconds share signed_percent signed_seconds signed_share thousandths
    unit"""
for _name in _FORMATTING.split():
    register.filter(getattr(formatting, _name))
register.filter(kernel_table.short_config)
register.filter(kernel_table.short_name)
register.filter("in_unit", lambda us, table: table.written(us))
register.filter("signed_in_unit", lambda us, table: table.signed(us))
register.filter("signed_part", lambda us, table: table.signed_part(us))
register.simple_tag(badge_html, name="badge")
register.simple_tag(icon_html, name="icon")
register.simple_tag(html.term_html, name="term")

_FOREIGN = "set for another device; not judged here"
_EXPECTATIONS = {
    "unexpected_failure": ("failed", "unexpected failure"),
    "unexpected_pass": ("improved", "unexpected pass"),
}
_HASH = re.compile(r"[0-9a-f]{8,64}")
_COMMIT = "{commit}"
_MOST_STREAMS = 8  # in the head
_WORTH_A_BADGE = {"improved", "regressed", "inconclusive"}


@register.simple_tag(takes_context=True)
def heads(context: Any, *titles: str, actions: str = "") -> SafeString:
    """Return the head of a table: titles, as ``Size|num|of the file`` with a class and a tooltip; `hidden` is
    for screen readers. The one of buttons is there for who has the scope `actions`, with ``*`` for all."""
    parts = ((*title.split("|"), "", "")[:3] for title in titles)
    columns = [
        Column("", name, css=css, tooltip=tooltip, hides_title="hidden" in css)
        for name, css, tooltip in parts
    ]
    if actions == "*" or actions in context.get("may", ()):
        columns.append(Column("", "Actions", hides_title=True))
    return SafeString(f"<thead><tr>{DataTable(*columns).head(None)}</tr></thead>")


@register.simple_tag
def verdict_badge(value: Point, *, brief: bool = False) -> SafeString:
    """Show the verdict, with the change unless it is `brief`; the title has the noise."""
    text = WORDS.get(value.verdict, value.verdict)
    if not brief and value.change is not None and value.verdict not in ("", "new", "in_pairs"):
        text = f"{text} {signed_percent(value.change)}"
    noise = f"noise {value.noise * 100:.2f} %, " if value.noise is not None else ""
    factor = f"{noise}change {abs(value.factor):.1f} × noise" if value.factor is not None else ""
    why = REASONS.get(value.verdict_reason or "", "")
    return badge_html(value.verdict, text, "; ".join(filter(None, (why, factor))))


def expectation_html(value: PointFields) -> SafeString:
    """Return a badge for what lists and people say of a point, '' where they say nothing."""
    if value.expectation in _EXPECTATIONS:
        key, text = _EXPECTATIONS[value.expectation]
        return badge_html(key, text)
    text = "known failure" if value.known_failure else value.expectation.replace("_", " ")
    return span(text, "tag", title=value.known_failure)


@register.simple_tag
def value_html(value: PointFields, *, is_brief: bool = False) -> SafeString:
    """Show the number with its unit and the spread of its samples, or the status, unless `is_brief` with why.

    Python, because a template for each of hundreds of cells costs more than everything else on a page.
    """
    if value.value is None:
        code = value.code if value.code != value.status else ""
        reason = span("" if is_brief else value.reason, "reason")
        return join(badge_html(value.status), code and html.code(code), reason, expectation_html(value))
    subject = f"{value.processes} processes" if value.processes > 1 else f"{value.samples} samples"
    title = f"median and robust spread of {subject}; not a confidence interval"
    spread = span(f"± {percent(value.spread)}", "spread", title=title) if value.spread else NOTHING
    shown = _number_html(value, quantity(value.value, value.metric))
    return join(shown, spread, *_marks(value), _status_badge(value), expectation_html(value))


def _status_badge(value: PointFields) -> SafeString:
    """Return what a number's record says beside `ok`."""
    title = ": ".join(filter(None, (value.code, value.reason)))
    return badge_html(value.status, title=title) if value.status_code else NOTHING


def _number_html(value: PointFields, text: str) -> SafeString:
    """Show a number, pale if it may not decide."""
    if not value.quality:
        return span(text, "value")
    return span(text, "value pale", title=f"may not decide: {quality_words(value.quality)}")


def _marks(value: PointFields) -> Iterator[SafeString]:
    """Mark numbers whose spread exceeds twice the metric's floor, and XLA times that include compilation."""
    floor = value.metric.floor
    if value.spread and value.spread > 2 * floor and value.metric.kind == "timing":
        title = f"sample spread {percent(value.spread)}; changes of {percent(floor)} count"
        yield span(join(icon_html("approx"), "noisy"), "tag", title=title)
    if FIRST_RUN_ONLY in (value.warning or ""):
        yield span("first run", "tag", title=FIRST_RUN_ONLY)


@register.simple_tag
def targets_html(value: PointFields, brief: bool = False) -> SafeString:
    """Show all targets of a number, as ``H200 target 950: met``."""
    shown, direction = value.value, value.metric.direction
    return join(
        *(
            badge_html(
                target.met_by(shown, direction) if target.own else "none",
                target.verdict(shown, direction, brief=brief),
                target.how if target.own else _FOREIGN,
            )
            for target in value.targets
        )
    )


@register.simple_tag
def cell_html(value: Point | None, with_unit: bool = False) -> SafeString:
    """Show a suite table's cell: the number, with or without its unit, then its marks."""
    if value is None:
        return SafeString('<span class="dim" title="not measured">·</span>')
    if value.value is None:
        title = ": ".join(filter(None, (WORDS.get(value.status, value.status), value.reason)))
        text = value.code or value.status
        return join(badge_html(value.status, WORDS.get(text, text), title), expectation_html(value))
    return join(
        _number_html(value, number(value.value, value.metric)),
        span(unit(value.metric) if with_unit else "", "unit"),
        _status_badge(value),
        *_marks(value),
        verdict_badge(value) if value.verdict in _WORTH_A_BADGE else NOTHING,
        *(_target_icon(target, value) for target in value.targets),
        expectation_html(value),
    )


def _target_icon(target: AppliedTarget, value: PointFields) -> SafeString:
    sentence = target.verdict(value.value, value.metric.direction)
    icon, tone = LOOKS[target.met_by(value.value, value.metric.direction) if target.own else "none"]
    shown = f" {target.brief.rpartition(' target ')[2] if target.own else sentence}"
    parts = [icon_html(icon), span(sentence, "visually-hidden"), element("span", shown, aria_hidden="true")]
    return span(join(*parts, by=""), f"badge small {tone}", title=sentence)


@register.simple_tag
def facts_list(facts: Mapping[str, Any]) -> SafeString:
    """Return the facts of an environment as a list of terms."""
    terms: list[tuple[str, Any]] = []
    for name, fact in facts.items():
        if fact and name in ("packages", "variables"):
            terms += fact.items()
        elif fact:
            terms.append((fact_name(name), bytes_text(fact) if name == "gpu_memory_bytes" else fact))
    return html.facts(terms)


def sparkline(values: Sequence[float]) -> SafeString | str:
    """Return the last values as a small line, drawn here so that it needs no script."""
    if not values:
        return ""
    label = f"last {len(values)} values, {min(values):.4g} to {max(values):.4g}, now {values[-1]:.4g}"
    return draw_line(values, size=(80, 20), label=label)


@register.simple_tag
def regression_line(one: Regression) -> SafeString:
    """Return the last values of a regression's series, with the noise around the level before; those since it
    moved are marked."""
    values, level = one.recent, one.before
    last = next((f"now {value:.4g}" for value in reversed(values) if value is not None), "no value")
    label = f"last {len(values)} results, {last}" + (f", level {level:.4g}" if level is not None else "")
    noise = abs(one.change / one.factor) if one.change is not None and one.factor else None
    moved = min(one.points, len(values))
    return draw_line(values, level=level, noise=noise, moved=moved, crosses=True, label=label)


def short_commit(commit: str) -> str:
    """Return the first characters of a hash; any other name as it is."""
    return commit[:SHORT_COMMIT] if _HASH.fullmatch(commit) else commit


@register.simple_tag
def commit(name: str | None) -> SafeString:
    """Show a commit: its short hash as a link, and a button that copies it."""
    if not name:
        return SafeString("")
    in_repository = settings.HUD_REPO_URL.replace(_COMMIT, name) if _HASH.fullmatch(name) else ""
    return _html(in_repository or runs_of(name), short_commit(name), name)


@register.simple_tag
def commit_range(old: str | None, new: str | None, address: str = "") -> SafeString:
    """Show ``old..new``, linked to `address` if given; one commit where the other is unknown or the same."""
    if not old or not new or old == new:
        return commit(new or old)
    if address:
        return _html(address, f"{short_commit(old)}..{short_commit(new)}", f"{old}..{new}")
    address, page = runs_of(f"{old}..{new}"), f"/commit/{_COMMIT}"
    if _HASH.fullmatch(old) and _HASH.fullmatch(new) and page in settings.HUD_REPO_URL:
        # which GitHub and GitLab have beside that of a commit
        address = settings.HUD_REPO_URL.replace(page, f"/compare/{old}...{new}")
    return _html(address, f"{short_commit(old)}..{short_commit(new)}", f"{old}..{new}")


def runs_of(commits: str) -> str:
    """Return the address of the runs of a commit, or of a range ``old..new``."""
    return f"{path('runs')}?commit={quote(commits, safe='.')}"


@register.filter
@cache
def path(name: str) -> str:
    """Return the address of a page that has one."""
    return reverse(name)


@lru_cache(maxsize=1024)  # the rows of a table have few commits
def _html(address: str, short: str, full: str) -> SafeString:
    label = span(f"Copy {short}", "visually-hidden")
    about = {"data_copy_text": full, "title": f"Copy {full}"}
    button = element("button", label, type="button", css="copy", **about)
    return span(join(link(address, code(short), title=full), button, by=""), "commit")


@register.simple_tag
def open_in_explore(**filters: Any) -> SafeString:
    """Return a link to Explore with what its filters say."""
    return link(streams.link(path("explore"), **filters), "Open in Explore", css="sm")


@register.simple_tag(takes_context=True)
def navigation(context: Any, here: str | None) -> SafeString:
    """Return the links to the pages in this one's stream, else in the front one, with how many of its causes
    wait for somebody: 1 statement."""
    stream = context.get("stream") or front()
    about = {"here": here, "causes": count(Scope(stream)).causes, "of": stream}
    return render_to_string("parts/nav.html", about | {"in_stream": context.get("in_stream", "")})


@register.simple_tag(takes_context=True)
def other_parameters(context: Any, *names: str) -> str:
    """Return the page's query without some names, after an ``&``, for the many links of a table that set
    these: `querystring` copies the query for each."""
    return without(context["request"].GET, *names)


@register.simple_tag(takes_context=True)
def stream_picker(context: Any) -> SafeString:
    """Return the streams with their newest results: this page's own, the chosen front one and `nightly`, then
    the newest, and what the judge has yet to judge of this one: 1 statement while something waits. A page
    of one run leads to the overview of another stream."""
    stream, request = context["stream"], context["request"]

    def place(one: Any) -> tuple[bool, bool, bool]:
        return one.pk != stream.pk, not one.is_front, one.name != NIGHTLY

    shown = sorted(with_results(streams.listed(request)), key=place)
    of_one = request.resolver_match.kwargs.keys() & {"pk"} and request.resolver_match.url_name != "experiment"
    address = path("overview") if of_one or request.method != "GET" else request.path
    links: list[object] = [
        link(
            f"{address}?stream={one.name}",
            join(one.name, ago(one.newest)),
            aria_current="true" if one.pk == stream.pk else "",
            title=one.title,
        )
        for one in shown[:_MOST_STREAMS]
    ]
    more = f"{len(shown) - _MOST_STREAMS} more" if len(shown) > _MOST_STREAMS else "All"
    links.append(link(path("streams"), more))
    if any(one.may_wait for one in shown) and (backlog := waiting(stream.pk)).series:
        times = (
            ("since", moment(backlog.since), "until about", moment(backlog.until)) if backlog.since else ()
        )
        links.append(span(join(backlog.series, "series wait to be judged", *times), "catching-up"))
    return element("nav", join(element("span", "Stream"), *links), css="streams", aria_label="Streams")
