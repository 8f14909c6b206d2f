"""The table of the cases of a cell, drawn in Python: a template takes longer than the rest of the page."""

from collections.abc import Sequence
from html import escape  # of strings only, at a fifth of the cost of Django's

from django.utils.safestring import SafeString

from hud.pages.compilers.cases import BEYOND, MARKS, Case, CaseList
from hud.pages.sparkline import change_interval
from hud.points.nights import Night, day
from hud.tables.formatting import address, signed_percent
from hud.templatetags.hud_tags import expectation_html
from hud.templatetags.table_tags import fixed, margin

_VERDICTS = {
    "regressed": '<span class="worse strong">▼ regressed</span>',
    "improved": '<span class="better strong">▲ improved</span>',
    "failed": '<span class="worse strong">✗ failed</span>',
    "unchanged": '<span class="dim">= unchanged</span>',
}
_TONES = {"regressed": " worse strong", "improved": " better strong"}
_PALE = ' class="pale" title="may not decide"'


def rows_html(chosen: CaseList, in_stream: str) -> SafeString:
    """Return a row for each case."""
    query = f"?{in_stream}&amp;metric={escape(chosen.cell.metric)}"
    rows = "".join([_row(case, query, chosen.reach) for case in chosen.cases])
    return SafeString(rows or f'<tr><td colspan="8" class="dim">None of {chosen.counts["all"]}.</td></tr>')


def _row(case: Case, query: str, reach: float) -> str:
    verdict, change = case.verdict, case.change
    words = _VERDICTS.get(verdict) or f'<span class="dim">{verdict}</span>'
    expected = f" {expectation_html(case.accuracy)}" if case.accuracy else ""
    before = f'<span class="faint">{fixed(case.base, 3)} →</span> ' if case.base is not None else ""
    sign = '<span class="u">×</span>' if case.head is not None else ""
    interval = f'<span class="pm"> {margin(case.margin)}</span>' if case.margin else ""
    factor = fixed(case.factor, 1) if case.factor is not None else ""
    compiled = ""
    if case.compile_head is not None:
        moved = f'<span class="faint row-change">{signed_percent(case.compile_change)}</span>'
        compiled = f'{fixed(case.compile_head, 1)}<span class="u">s</span> {moved}'
    return (
        f'<tr><th scope="row"><a href="{address(case.experiment.pk, "experiment")}{query}">'
        f"{escape(case.experiment.title)}</a></th><td>{words}{expected}</td>"
        f'<td class="num">{before}<b{_PALE if case.undecided else ""}>{fixed(case.head, 3)}</b>{sign}</td>'
        f'<td class="num{_TONES.get(verdict, "")}">{signed_percent(change)} {interval}</td>'
        f'<td class="fpc">{_interval_html(case, reach)}</td><td class="num">{factor}</td>'
        f'<td class="num">{compiled}</td><td>{_grid_html(case)}</td></tr>'
    )


def _grid_html(case: Case) -> SafeString:
    """Return the last nights as a row of cells, drawn here so that it needs no script."""
    cells = "".join(
        f'<rect x="{1 + 10 * place}" y="1.5" width="8" height="15" rx="1.5" class="{mark}"/>'
        + (f'<path class="x" d="M{3 + 10 * place} 7l4 4m0-4l-4 4"/>' if mark == "failed" else "")
        for place, mark in enumerate(case.marks)
    )
    shown = ((case.marks.count(mark), words) for mark, words in MARKS.items() if mark in case.marks)
    counted = ", ".join(f"{count} {words}" for count, words in shown)
    width = 10 * len(case.marks)
    return SafeString(
        f'<svg class="grid" width="{width}" height="18" viewBox="0 0 {width} 18" role="img" '
        f'aria-label="last {len(case.marks)} nights: {counted}">{cells}</svg>'
    )


def _interval_html(case: Case, reach: float) -> SafeString:
    """Return the change with its 95 % interval on the axis of all cases; '' without a noise."""
    if not case.noise:
        return SafeString("")
    return change_interval(case.change, case.margin, BEYOND * case.noise, case.verdict, reach)


def dates_html(nights: Sequence[Night]) -> SafeString:
    """Return the dates above the cells, every seventh night from the newest."""
    labels = "".join(
        f'<text x="{10 * place + 5}" y="10" text-anchor="middle">{day(nights[place].time)}</text>'
        for place in range(len(nights) - 2, 0, -7)
    )
    width = 10 * len(nights)
    return SafeString(
        f'<svg class="grid" width="{width}" height="12" viewBox="0 0 {width} 12" aria-hidden="true">'
        f"{labels}</svg>"
    )
