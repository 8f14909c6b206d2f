"""Template tags of the page that compares: numbers, intervals, and all changes on one axis."""

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from django import template
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from hud.judging.compare import text
from hud.judging.compare.groups import KINDS, CohortGroup, Mean
from hud.judging.compare.judged import JudgedCell
from hud.judging.compare.query import Candidate, ComparedRow, ComparePage, Sections
from hud.pages import streams
from hud.pages.sparkline import TONES, change_interval
from hud.pages.tags import path
from hud.tables.formatting import address, percent, signed_percent, unit
from hud.tables.html import badge_html, element, join, link

register = template.Library()
_WIDTH, _FLOOR, _TOP = 1360, 86, 10  # of the chart of all changes
_STEP = 7  # between dots
_NAMED = 9
_PASSED = (
    '<span class="faint">{base_passed} →</span> <b>{head_passed}</b> <span class="u">of {expected}</span>'
)
register.filter("reasons", text.reasons)
register.filter("apart", text.apart)
register.filter("in_metric", text.value)


@register.filter
def passed(counts: Mapping[str, int]) -> str:
    return _PASSED.format_map(counts) + (
        f'<span class="u pale">{undecided}</span>' if (undecided := text.undecided(counts)) else ""
    )


@register.filter
def share100(share: float) -> str:
    """Return a share as per cent without its sign, as beside ±."""
    return f"{share * 100:.1f}"


@register.filter
def sentence(candidate: Candidate) -> SafeString:
    """Return its counts in colour: orange and blue only for what is beyond the noise."""
    parts = [element("span", word, css=tone) if tone else word for word, tone in text.parts(candidate)]
    return SafeString(f"{join(*parts, by=', ')}.")


@register.simple_tag
def compared_rows(rows: Sequence[ComparedRow], reach: float) -> SafeString:
    """Return rows of what is compared. Python, since a page has up to 500 rows of 50 tags each."""
    return SafeString("".join([_row(row, reach) for row in rows]))


def _row(row: ComparedRow, reach: float) -> str:
    best, several = row.best, len(row.cells) > 1
    experiment, under = f"{address(row.pk, 'experiment')}?stream={row.stream}", ""
    metric = f"&amp;metric={quote(best.metric.name)}" if best else ""
    if best:
        also = f"; also {', '.join(row.also)}" if row.also else ""
        under = f'<span class="under faint">{escape(best.metric.title + also)}</span>'
    title = f'<a href="{experiment}{metric}">{escape(row.experiment.title)}</a>'
    parts = [f'<tr><th scope="row">{title} <span class="dim">{escape(row.about)}</span>{under}</th>']
    other = best if several else None
    one_side = '<td class="dim" colspan="3">not on both sides</td>'
    parts += [_of_candidate(cell, other) if cell else one_side for cell in row.cells]
    if not several:
        drawn = best and change_interval(
            best.change, best.margin, 2 * (best.noise or 0.0), best.verdict, reach
        )
        parts.append(f'<td class="fpc">{drawn or ""}</td>')
    factor = f"{best.factor:.1f}" if best and best.factor is not None else ""
    parts.append(f'<td class="num">{factor}</td><td class="why">{_what_changed(row)}</td>')
    parts.append(f"<td>{_state(row, experiment)}</td></tr>")
    return "".join(parts)


def _of_candidate(cell: JudgedCell, best: JudgedCell | None) -> str:
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
    margin = f' <span class="faint pm">± {share100(cell.margin)} %</span>' if cell.margin else ""
    return (
        f"<td>{badge_html(cell.verdict)}{told}</td>"
        f'<td class="num"><span class="faint">{before} →</span> <b>{after}</b>{sign}</td>'
        f'<td class="num{tone}">{signed_percent(cell.change)}{margin}</td>'
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
def means_rows(groups: Sequence[CohortGroup], formulas: str) -> SafeString:
    """Return a row for each suite and backend. Python, since there may be fifty of twenty tags each."""
    rows = ""
    for group in groups:
        key, counts, (before, after) = group.key, group.counts, group.rates
        address = streams.link(reverse("suite", args=[key.suite]), backend=key.backend)
        suite, subject = join(link(address, key.suite), key.backend), " · ".join(filter(None, key[2:]))
        alone = [(counts["only_base"], "only baseline"), (counts["only_head"], "only candidate")]
        rest = ", ".join(f"{number} {words}" for number, words in alone if number)
        rates = f"{percent(before)} → {percent(after)}" if formulas and after else ""
        means = (_mean(group.means.get(kind), group.is_same_place) for kind in KINDS)
        rows += (
            f'<tr><th scope="row">{suite}<span class="under dim">{escape(subject)}</span></th>'
            f'<td class="num" data-label="matched"><b>{counts["matched"]}</b>{_under(rest)}</td>'
            f'<td class="num" data-label="passing">{passed(counts)}{_under(rates)}</td>'
            + "".join(f'<td class="num">{mean}</td>' for mean in means)
            + "</tr>"
        )
    return SafeString(rows)


def _mean(mean: Mean | None, is_same_place: bool) -> str:
    """Return a mean, base → head, with its change and interval, tinted if the code may be the cause."""
    if mean is None or mean.head is None:
        return '<span class="faint">–</span>'
    matched = f"{mean.matched} matched" if mean.matched else "each side's own"
    return (
        f'{ends(mean)}<span class="under">{moved(mean, mean.tone if is_same_place else "")}</span>'
        f"{_under(f'{mean.metric.title}, {matched}')}"
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
    icon = {"better": "▲ ", "worse": "▼ "}.get(tone, "")
    change = f'<span class="{tone or "faint"}">{icon}{signed_percent(mean.change)}</span>'
    return f'{change} <span class="faint">{text.interval_of(mean)}</span>'


@register.simple_tag
def swarm(page: ComparePage, rows: Sections) -> SafeString:
    """Return all changes of the first candidate on one axis: a dot is an experiment, named where it moved."""
    changes, reach = page.changes(0), page.reach
    if len(changes) < 2:
        return SafeString("")

    def x_of(change: float) -> float:
        return _WIDTH / 2 + (_WIDTH / 2 - 60) * max(-1.0, min(1.0, change / reach))

    bins: dict[int, list[str]] = {}
    for verdict, change in reversed(changes):
        bins.setdefault(round(x_of(change) / _STEP), []).append(TONES.get(verdict, "d"))
    marks = []
    for place, tones in bins.items():
        step = min(_STEP, (_FLOOR - _TOP) / len(tones))
        marks += [
            f'<circle class="pt {tone}" cx="{place * _STEP}" cy="{_FLOOR - step * at:.1f}" r="3"/>'
            for at, tone in enumerate(tones)
        ]
    at_ticks = [reach * part for part in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    ticks = [(f"{x_of(change):.0f}", signed_percent(change)) for change in at_ticks]
    names = [
        (x_of(cell.change), row.experiment.title)
        for row in (*rows.movers, *rows.undecided)
        if (cell := row.cells[0]) and cell.change is not None and (cell.moved or cell.undecided)
    ]
    label = f"Change of {len(changes)} experiments, {signed_percent(-reach)} to {signed_percent(reach)}"
    axis = [element("text", change, x=x, y="108", text_anchor="middle") for x, change in ticks]
    labels = [
        element("text", name, css="nm", x=x, y=str(y), text_anchor="middle") for x, y, name in _named(names)
    ]
    return SafeString(
        f'<svg class="swarm" viewBox="0 0 {_WIDTH} 112" role="img" aria-label="{label}">'
        f'<line class="zero" x1="{_WIDTH // 2}" x2="{_WIDTH // 2}" y1="4" y2="92"/>'
        f'<line class="gr" x1="20" x2="{_WIDTH - 20}" y1="92" y2="92"/>'
        f"{''.join([*axis, *marks, *labels])}</svg>"
    )


def _named(names: list[tuple[float, str]]) -> list[tuple[str, int, str]]:
    """Return the labels of the first few, each on the lowest of four lines where it has room."""
    taken: list[list[tuple[float, float]]] = [[], [], [], []]
    placed = []
    for x, name in names[:_NAMED]:
        half = 3.4 * len(name[:28]) + 6
        middle = max(half, min(_WIDTH - half, x))
        for line, spans in enumerate(taken):
            if all(middle + half < low or middle - half > high for low, high in spans):
                spans.append((middle - half, middle + half))
                placed.append((f"{middle:.0f}", 74 - 15 * line, name[:28]))
                break
    return placed
