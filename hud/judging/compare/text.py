"""A comparison in words: the sentence above the tables, and Markdown to paste."""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from hud.judging.compare.differences import sentence
from hud.judging.compare.groups import CohortGroup, Mean
from hud.judging.compare.judged import WORDS, ComparedRow, JudgedCell, Sections
from hud.judging.compare.query import Candidate, ComparePage, complete
from hud.models import Metric
from hud.tables.formatting import number as number_text
from hud.tables.formatting import signed_percent, unit

_ACROSS = {"regressed": "worse", "improved": "better", "unchanged": "even"}
_ICONS = {"regressed": "▼", "improved": "▲", "failed": "✗", "inconclusive": "?", "unchanged": "="}
_MARKUP = re.compile(r"[\\`*\[\]<>|#~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def shown(page: ComparePage, *, everything: bool) -> Sections:
    """Return the rows to show: all movers up to 200, of the others the largest unless `everything`."""
    rows, most = page.rows, 500
    few, some = (most, most) if everything else (5, 20)
    rows = Sections(rows.movers[:200], rows.undecided[:some], rows.quiet[:few], rows.apart[:some])
    complete(rows.every, page.places, page.heads[0].stream)
    return rows


def parts(candidate: Candidate) -> list[tuple[str, str]]:
    """Return the sentence as parts with their tone: ``5 regressed``, ``1 improved``, …"""
    if not candidate.totals.counts["matched"]:
        return [("Nothing is on both sides", "")]
    failures = "new failure" if candidate.verdicts["failed"] == 1 else "new failures"
    kinds = [
        ("regressed", word("regressed", candidate.across), "worse"),
        ("improved", word("improved", candidate.across), "better"),
        ("failed", failures, "worse"),
        ("inconclusive", "inconclusive", "doubt"),
        ("unchanged", "even" if candidate.across else "within noise", ""),
    ]
    if both := candidate.verdicts["both"]:  # of several metrics
        kinds[1] = ("improved", f"{kinds[1][1]} ({both} both)", "better")
    counted = [(verdict, candidate.verdicts[verdict], words, tone) for verdict, words, tone in kinds]
    return [(f"{n} {words}", tone) for verdict, n, words, tone in counted if n or verdict == "unchanged"]


def word(verdict: str, across: Collection[str]) -> str:
    """Return the word for a verdict; what is compared across cards or backends did not move."""
    return _ACROSS.get(verdict, verdict) if across else verdict


def reasons(candidate: Candidate) -> str:
    """Return why changes are inconclusive: ``4 on another card, 1 near the noise``."""
    return ", ".join(f"{number} {WORDS.get(name, name)}" for name, number in candidate.reasons.most_common())


def value(number: float | None, metric: Metric) -> str:
    """Return a value with the metric's precision and without its unit."""
    if number is None:
        return "–"
    if metric.unit == "B":
        return f"{number / 1e9:.3f} GB" if abs(number) >= 1e8 else f"{number / 1e6:.2f} MB"
    return number_text(number, metric)


def ends(judged: JudgedCell) -> tuple[str, str]:
    """Return both sides' values, or the status of the one that has none."""
    metric = judged.metric
    return tuple(  # type: ignore[return-value]
        value(point.value, metric) if point.value is not None else point.status.replace("_", " ")
        for point in (judged.base, judged.head)
    )


def markdown(page: ComparePage, rows: Sections) -> str:
    """Return the comparison as Markdown, with the rows that the page shows."""
    base, blocks = page.base, []
    for index, candidate in enumerate(page.candidates):
        side, words = candidate.side, ", ".join(word for word, _tone in parts(candidate))
        counted = "{matched} matched, {only_base} only baseline, {only_head} only candidate"
        lines = [
            f"**{_safe(base.text)} → {_safe(side.text)}**: {words}",
            counted.format_map(candidate.totals.counts),
            f"Commits {base.newest.commit[:12] or 'unknown'} → {side.newest.commit[:12] or 'unknown'}",
        ]
        lines += [_total(mean) for mean in candidate.totals.means.values()]
        lines += ["", *_means(candidate.groups), "", *_rows(rows, index, page.across)]
        blocks.append("\n".join(lines))
    blocks.append(_safe(sentence(page.facts, page.across)))
    return "\n\n".join(blocks) + "\n"


def mean_ends(mean: Mean) -> tuple[str, str]:
    """Return both sides' means with the metric's precision, or their sums with four digits or more."""

    def written(end: float | None) -> str:
        if end is None or mean.statistic != "sum":
            return value(end, mean.metric)
        return f"{end:.1f}" if end >= 100 else f"{end:.4g}"

    return written(mean.base), written(mean.head)


def interval_of(mean: Mean) -> str:
    """Return the interval of a mean's change in per cent, '' without one."""
    return f"{signed_percent(mean.low)} to {signed_percent(mean.high)}" if mean.low is not None else ""


def _total(mean: Mean) -> str:
    before, after = mean_ends(mean)
    interval = f", 95 % {span}" if (span := interval_of(mean)) else ""
    change = f"{signed_percent(mean.change)}{interval}, {mean.matched} matched"
    name = f"{_safe(mean.metric.title)}, {mean.statistic}"
    return f"{name}: {' '.join(filter(None, (before, '→', after, unit(mean.metric))))} ({change})"


def undecided(counts: Mapping[str, int]) -> str:
    """Return how many candidates have a number that may not decide, to follow a denominator."""
    return f", {counts['undecided']} inconclusive" if counts["undecided"] else ""


def _means(groups: Iterable[CohortGroup]) -> Iterable[str]:
    yield "| suite | backend | passing | mean | base | head | change | 95 % |"
    yield "|---|---|--:|---|--:|--:|--:|--:|"
    for group in groups:
        counts = group.counts
        passing = "{base_passed} → {head_passed} of {expected}".format_map(counts) + undecided(counts)
        start = f"| {_safe(group.key.suite)} | {_safe(' '.join(filter(None, group.key[1:])))} | {passing} |"
        if not group.means:
            yield f"{start} | | | | |"
        for mean in group.means.values():
            before, after = mean_ends(mean)
            change = f"{signed_percent(mean.change)} | {interval_of(mean)}"
            yield f"{start} {_safe(mean.metric.title)} | {before} | {after} | {change} |"


def _rows(rows: Sections, index: int, across: Collection[str]) -> Iterable[str]:
    yield "| experiment | metric | base | head | change | × noise | verdict |"
    yield "|---|---|--:|--:|--:|--:|---|"
    for row in rows.compared:
        if cell := row.cells[index]:
            before, after = ends(cell)
            why = f" ({cell.why})" if cell.why else ""
            factor = f"{cell.factor:.1f}" if cell.factor is not None else ""
            name = f"{row.experiment.title} {row.about}"
            after = f"{after} {unit(cell.metric)}".strip() if cell.head.value is not None else after
            words = [_safe(name), _safe(cell.metric.title), before, after]
            words += [
                signed_percent(cell.change),
                factor,
                f"{_ICONS[cell.verdict]} {word(cell.verdict, across)}{why}",
            ]
            yield f"| {' | '.join(words)} |"
    for row in rows.apart:
        yield f"| {_safe(f'{row.experiment.title} {row.about}')} | | | | | | {apart(row)} |"


def apart(row: ComparedRow) -> str:
    """Return why a row is not compared."""
    only = {"base": "only in the baseline", "head": "only in the candidate"}
    return row.best.why if row.best else only[row.only]


@lru_cache(maxsize=1024)  # metrics and suites come again in each row
def _safe(text: str) -> str:
    """Return text that stays inside a cell of a Markdown table, is no markup and mentions nobody."""
    return " ".join(_MARKUP.sub(r"\\\g<0>", text).split()).replace("@", "@\u200b")
