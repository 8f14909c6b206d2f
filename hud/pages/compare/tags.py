"""Template tags of the page that compares: numbers, intervals, and all changes on one axis."""

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from django import template
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from hud.judging.compare import text
from hud.judging.compare.groups import KINDS, Axis, CohortGroup, Mean
from hud.judging.compare.judged import ComparedRow, JudgedCell, Sections
from hud.judging.compare.query import Candidate, ComparePage
from hud.pages import streams
from hud.pages.backends_table import backend_place, colour
from hud.pages.sparkline import change_interval
from hud.pages.table_tags import margin
from hud.pages.tags import path
from hud.tables.formatting import address, signed_percent, unit
from hud.tables.html import badge_html, element, icon_html, join, link, span

register = template.Library()
_WIDTH, _FLOOR, _TOP = 660, 86, 10  # of the chart of a metric
_STEP = 7  # between dots
_NAMED = 3
_PASSED = (
    '<span class="faint">{base_passed} →</span> <b>{head_passed}</b> <span class="u">of {expected}</span>'
)
register.filter(margin)
register.filter("reasons", text.reasons)
register.filter("apart", text.apart)
register.filter("in_metric", text.value)


@register.filter
def passed(counts: Mapping[str, int]) -> str:
    return _PASSED.format_map(counts) + (
        f'<span class="u pale">{undecided}</span>' if (undecided := text.undecided(counts)) else ""
    )


@register.filter
def sentence(candidate: Candidate) -> SafeString:
    """Return its counts in colour: orange and blue only for what is beyond the noise."""
    parts = [element("span", word, css=tone) if tone else word for word, tone in text.parts(candidate)]
    return SafeString(f"{join(*parts, by=', ')}.")


@register.simple_tag
def compared_rows(rows: Sequence[ComparedRow], page: ComparePage) -> SafeString:
    """Return rows of what is compared. Python, since a page has up to 500 rows of 50 tags each."""
    return SafeString("".join([_row(row, page) for row in rows]))


def _row(row: ComparedRow, page: ComparePage) -> str:
    best, several = row.best, len(row.cells) > 1
    experiment, under = f"{address(row.pk, 'experiment')}?stream={row.stream}", ""
    metric = f"&amp;metric={quote(best.metric.name)}" if best else ""
    if best and not (page.filters.metric and not several):
        also = f"; also {', '.join(row.also)}" if row.also else ""
        under = f'<span class="under faint">{escape(best.metric.title + also)}</span>'
    title = f'<a href="{experiment}{metric}">{escape(row.experiment.title)}</a>'
    parts = [f'<tr><th scope="row">{title} <span class="dim">{escape(row.about)}</span>{under}</th>']
    other = best if several else None
    one_side = '<td class="dim" colspan="3">not on both sides</td>'
    parts += [_of_candidate(cell, other, page.across) if cell else one_side for cell in row.cells]
    if not several and page.filters.metric:  # one metric an axis
        drawn = best and change_interval(
            best.change, best.margin, 2 * (best.noise or 0.0), best.verdict, page.reach
        )
        parts.append(f'<td class="fpc">{drawn or ""}</td>')
    factor = f"{best.factor:.1f}" if best and best.factor is not None else ""
    parts.append(f'<td class="num">{factor}</td><td class="why">{_what_changed(row)}</td>')
    parts.append(f"<td>{_state(row, experiment)}</td></tr>")
    return "".join(parts)


def _of_candidate(cell: JudgedCell, best: JudgedCell | None, across: Sequence[str]) -> str:
    """Return verdict, values and change against the baseline; its metric if it is not that of `best`."""
    told = cell.why and f'<span class="under dim">{cell.why}</span>'
    if cell.verdict == "failed":
        why = Truncator(cell.why or cell.head.note or cell.head.code or "").chars(80)
        told = f'<span class="under dim">{escape(why)}</span>'
    if best and cell.metric.name != best.metric.name:
        told += f'<span class="under faint">{escape(cell.metric.title)}</span>'
    before, after = text.ends(cell)
    sign = unit(cell.metric) if cell.head.value is not None else ""
    sign = sign and f' <span class="u">{escape(sign)}</span>'
    tone = {"regressed": " worse", "improved": " better"}.get(cell.verdict, "")
    interval = f' <span class="faint pm">{margin(cell.margin)} %</span>' if cell.margin else ""
    return (
        f"<td>{badge_html(cell.verdict, text.word(cell.verdict, across) if across else '')}{told}</td>"
        f'<td class="num"><span class="faint">{before} →</span> <b>{after}</b>{sign}</td>'
        f'<td class="num{tone}">{signed_percent(cell.change)}{interval}</td>'
    )


def _what_changed(row: ComparedRow) -> str:
    if not row.code:
        return f'<span class="dim">{escape(row.facts)}</span>'
    base, head = (quote(side, "") for side in row.code)
    query = f"stream={row.stream}&amp;base={base}&amp;head={head}"
    return f'<a href="{path("code")}?{query}">{escape(row.facts or "Kernels")}</a>'


def _state(row: ComparedRow, experiment: str) -> str:
    """Return the regression's state, and how to rerun the experiment at that address."""
    shown = ""
    if one := row.regression:
        regression = f"{path('regressions')}?stream={row.stream}&amp;open={one.pk}"
        shown = f'<a class="state" href="{regression}">{escape(one.state)}</a> '
    if rerun := row.rerun:
        label = "Rerun in pairs" if rerun.in_pairs else "Rerun"
        query = escape(rerun.query)
        shown += f'<a class="button small" href="{experiment}&amp;{query}#rerun" data-rerun>{label}</a>'
        shown += rerun.hindrance and f'<span class="under faint">{escape(rerun.hindrance)}</span>'
    return shown


@register.simple_tag
def means_rows(groups: Sequence[CohortGroup]) -> SafeString:
    """Return a row for each suite and backend. Python, since there may be fifty of twenty tags each."""
    rows = ""
    for group in groups:
        key, counts = group.key, group.counts
        address = streams.link(reverse("suite", args=[key.suite]), backend=key.backend)
        suite, subject = join(link(address, key.suite), key.backend), " · ".join(filter(None, key[2:]))
        alone = [(counts["only_base"], "only baseline"), (counts["only_head"], "only candidate")]
        rest = ", ".join(f"{number} {words}" for number, words in alone if number)
        means = (_mean(group.means.get(kind), group.is_tinted) for kind in KINDS)
        rows += (
            f'<tr><th scope="row">{suite}<span class="under dim">{escape(subject)}</span></th>'
            f'<td class="num" data-label="matched"><b>{counts["matched"]}</b>{_under(rest)}</td>'
            f'<td class="num" data-label="passing">{passed(counts)}</td>'
            + "".join(f'<td class="num">{mean}</td>' for mean in means)
            + "</tr>"
        )
    return SafeString(rows)


def _mean(mean: Mean | None, is_tinted: bool) -> str:
    """Return a mean, base → head, with its change and interval."""
    if mean is None or mean.head is None:
        return '<span class="faint">–</span>'
    return (
        f'{ends(mean)}<span class="under">{moved(mean, mean.tone if is_tinted else "")}</span>'
        f"{_under(f'{mean.metric.title}, {mean.matched} matched')}"
    )


def _under(words: str) -> str:
    return words and f'<span class="under faint">{escape(words)}</span>'


@register.filter
def ends(mean: Mean) -> str:
    before, after = text.mean_ends(mean)
    sign = escape(unit(mean.metric))
    return f'<span class="faint">{before} →</span> <b>{after}</b> <span class="u">{sign}</span>'


@register.filter
def moved(mean: Mean, tone: str) -> str:
    icon = icon_html(tone) if tone in ("better", "worse") else ""
    change = f'<span class="{tone or "faint"}">{icon} {signed_percent(mean.change)}</span>'
    interval = text.interval_of(mean)
    return f'{change} <span class="faint">{interval and f"({interval})"}</span>'


@register.simple_tag
def axis(shown: Axis, rows: Sections) -> SafeString:
    """Return the changes of one metric on a logarithmic axis: a dot is an experiment in its backend's colour,
    and those furthest from the middle are named where their rows are shown."""
    logs = [math.log1p(max(change, -0.999)) for _pk, _backend, change in shown.changes]
    low, high = min([0.0, *logs]), max([0.0, *logs])
    width = max(high - low, 0.02)

    def x_of(log: float) -> float:
        return 40 + (_WIDTH - 80) * (0.5 + (log - (low + high) / 2) / width)

    bins: dict[int, list[str]] = {}
    for (_pk, backend, _change), log in zip(shown.changes, logs, strict=True):
        bins.setdefault(round(x_of(log) / _STEP), []).append(f"pt s{colour(backend)}")
    marks = [
        f'<circle class="{style}" cx="{place * _STEP}" cy="{_FLOOR - _STEP * at}" r="3"/>'
        for place, styles in bins.items()  # of many as many as there is room for, in their proportion
        for at, style in enumerate(sorted(styles)[:: math.ceil(len(styles) * _STEP / (_FLOOR - _TOP))])
    ]
    ends = [(low + high) / 2 + width * part for part in (-0.5, -0.25, 0.0, 0.25, 0.5)]
    ticks = [
        element("text", signed_percent(math.expm1(end)), x=f"{x_of(end):.0f}", y="108", text_anchor="middle")
        for end in ends
    ]
    titles = {row.pk: row.experiment.title for row in rows.compared}
    middle = statistics.median(logs)
    far = sorted(zip(logs, shown.changes, strict=True), key=lambda one: -abs(one[0] - middle))
    names = [(x_of(log), titles[pk]) for log, (pk, _backend, _change) in far[:_NAMED] if pk in titles]
    tops = {place * _STEP: min(len(styles) * _STEP, _FLOOR - _TOP) for place, styles in bins.items()}
    labels = [
        element("text", name, css="nm", x=x, y=str(y), text_anchor="middle")
        for x, y, name in _named(names, tops)
    ]
    edges = [max(0.0, min(_WIDTH, x_of(side * 2 * shown.noise))) for side in (-1, 1)]
    label = f"Change of {shown.metric.title} in {len(logs)} experiments"
    return SafeString(
        f'<svg class="swarm" viewBox="0 0 {_WIDTH} 112" role="img" aria-label="{escape(label)}">'
        f'<rect class="band" x="{edges[0]:.1f}" width="{edges[1] - edges[0]:.1f}" y="4" height="88"/>'
        f'<line class="zero" x1="{x_of(0):.1f}" x2="{x_of(0):.1f}" y1="4" y2="92"/>'
        f'<line class="gr" x1="10" x2="{_WIDTH - 10}" y1="92" y2="92"/>'
        f"{''.join([*ticks, *marks, *labels])}</svg>"
    )


@register.simple_tag
def axis_keys(axes: Sequence[Axis]) -> SafeString:
    """Return the colours of the backends."""
    backends = sorted(
        {backend for shown in axes for _pk, backend, _change in shown.changes}, key=backend_place
    )
    return join(*(span(join(span(" ", f"key s{colour(one)}"), one, by=""), "nowrap") for one in backends))


def _named(names: list[tuple[float, str]], tops: Mapping[int, int]) -> list[tuple[str, int, str]]:
    """Return the labels, each on the lowest of four lines where it has room above the dots, whose heights are
    `tops`."""
    taken: list[list[tuple[float, float]]] = [[], [], [], []]
    placed = []
    for x, name in names:
        half = 3.4 * len(name[:28]) + 6
        middle = max(half, min(_WIDTH - half, x))
        height = max((top for at, top in tops.items() if abs(at - middle) <= half), default=0)
        for line, spans in enumerate(taken):
            if height < 15 * (line + 1) and all(
                middle + half < low or middle - half > high for low, high in spans
            ):
                spans.append((middle - half, middle + half))
                placed.append((f"{middle:.0f}", 74 - 15 * line, name[:28]))
                break
    return placed
