"""Template tags of the page of a run: its sentence, its findings, sortable heads and pairs as a picture."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django import template
from django.template.defaultfilters import pluralize
from django.template.defaulttags import querystring
from django.urls import reverse
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from hud.models import Experiment, Point, PointFields, SidePoint
from hud.pages.run.pairs import PairLine
from hud.pages.run.query import RunPage
from hud.pages.run.results import Results
from hud.pages.streams import link
from hud.templatetags.commit_tags import commit_range
from hud.templatetags.hud_tags import (
    REASONS,
    badge_html,
    better,
    long_name,
    number,
    signed_percent,
    targets_html,
    value_html,
    verdict_badge,
)
from runner.schema.metrics import role_of

register = template.Library()

_BADGES = {"regressed": "regressed", "failed": "failed", "missed": "missed"}  # shown beside the state
_LABELS = {  # kind → icon, word of a filter, words of a sentence
    "regressed": ("▼", "regressed", "regressed"),
    "unexpected": ("!", "unexpected", "came unexpectedly"),
    "failed": ("✗", "failed", "failed"),
    "missed": ("◎", "missed target", "missed a target"),
    "inconclusive": ("?", "inconclusive", "inconclusive"),
    "improved": ("▲", "improved", "improved"),
    "not_run": ("○", "not run", "not run"),
    "known": ("✗", "known failure", ""),
    "rest": ("=", "nothing found", ""),
}
_WIDTH, _ROW, _LEFT = 560, 22, 62  # of the picture of pairs, px
_BARS = 28  # height of a line's bars, px


@register.simple_tag
def kind_label(kind: str) -> SafeString:
    icon, word, _words = _LABELS[kind]
    return format_html('<span class="icon" aria-hidden="true">{}</span> {}', icon, word)


@register.simple_tag
def finding_badges(results: Results) -> SafeString:
    """Show beside a run's state how many experiments are worse: "succeeded" alone would hide them."""
    shown = ((kind, results.counts[kind].experiments) for kind in _BADGES if kind in results.counts)
    return format_html_join(
        " ", "{}", ((badge_html(kind, f"{count} {_LABELS[kind][1]}"),) for kind, count in shown)
    )


@register.simple_tag
def run_sentence(page: RunPage) -> SafeString | str:
    """Return what the run found, in one sentence."""
    results = page.results
    if page.run.is_ab:
        return _sentence_of_pairs(page)
    if not results.points:
        bad = sum(line.ended and line.word not in ("ok", "cancelled") for line in page.tasks)
        failed = f"{bad} of {len(page.tasks)} tasks failed; there" if bad else "There"
        return "" if page.active else f"{failed} are no results."
    subject = f"{results.experiments} experiment{pluralize(results.experiments)}"
    found = [
        f"{count.experiments} {_LABELS[kind][2]}"
        for kind, count in results.counts.items()
        if _LABELS[kind][2] and count.experiments
    ]
    so_far = " so far" if page.active else ""
    if not found:
        is_first = {value.verdict for value in results.rows if value.verdict} == {"new"}
        nothing = "no earlier results to compare with; nothing" if is_first else "nothing regressed,"
        return f"{subject}{so_far}: {nothing} failed or missed a target."
    worst = results.worst
    named = ""
    if worst:
        how = "Worst" if worst["kind"] == "regressed" else "Largest open question"
        named = f" {how}: {worst['case']}, {worst['metric']} {signed_percent(worst['change'])}."
    return f"Of {subject}{so_far}: {', '.join(found)}.{named}"


def _sentence_of_pairs(page: RunPage) -> str:
    if not page.pairs:
        return "No pair has ended yet." if page.active else "No pair has values on both sides."
    worse = [line for line in page.pairs if line.verdict.better is False]
    gains = [line for line in page.pairs if line.verdict.better]
    text = f"{page.run.candidate} against {page.run.base_interpreter}: "
    text += f"{len(worse)} metric{pluralize(len(worse))} confirmed worse, {len(gains)} confirmed better, of "
    text += f"{len(page.pairs)}."
    names = {line.metric.name for line in page.pairs}
    judged = (line for line in page.pairs if role_of(line.metric.name, names) == "headline")
    first = next(judged, page.pairs[0])
    if first.change is not None:
        text += f" {first.metric.title} {signed_percent(first.change)}"
        text += f" ({signed_percent(first.low)} to {signed_percent(first.high) or 'any'})."
    return text


@register.simple_tag(takes_context=True)
def sorted_head(context: Any, current: str, name: str, label: str, classes: str = "") -> SafeString:
    """Return a column head that sorts: first upwards, then downwards, then as it was."""
    following = {name: f"-{name}", f"-{name}": None}.get(current, name)
    order = {name: "ascending", f"-{name}": "descending"}.get(current, "")
    return format_html(
        '<th scope="col" class="{}"{}><a href="{}#results">{}{}</a></th>',
        classes,
        format_html(' aria-sort="{}"', order) if order else "",
        querystring(context, sort=following, page=None) or "?",
        label,
        {"ascending": " ↑", "descending": " ↓"}.get(order, ""),
    )


@register.simple_tag(takes_context=True)
def result_row(
    context: Any, value: PointFields, varying: Collection[str], noise: bool, targets: bool
) -> SafeString:
    """Return a row of the table of results. Python, since a page has up to 50 rows of 40 tags each."""
    page: RunPage = context["page"]
    experiment, metric = value.experiment, value.metric
    title = experiment.title
    address = escape(link(reverse("experiment", args=[experiment.pk]), metric=metric.name))
    said = f"{escape(metric.title)}{_processes(value)}"
    shown = value_html(value)
    if isinstance(value, Point) and value.level is not None:
        was = f'<span class="visually-hidden">baseline </span>{number(value.level, metric)} → '
        shown = SafeString(f'<span class="was">{was}</span>{shown}')  # nosec B703 B308: of numbers and value_html
    if note := page.results.notes.get(value.warning or ""):
        shown += format_html(
            ' <a class="tag" href="#note-{0}" title="{1}">note {0}</a>', note[0], value.warning
        )
    elif value.warning:
        shown += format_html(' <span class="reason">{}</span>', value.warning)
    if value.value is None:
        with context.push(value=value):
            shown += context.template.engine.get_template("run/explain.html").render(context)
    row = f'<tr>\n<th scope="row"><a href="{address}#run-{page.run.pk}"{long_name(title)}>{escape(title)}</a>'
    row += f' <span class="fact">{_facts(experiment, varying)}</span></th>'
    row += f'<td title="{escape(metric.name)}, {better(metric)}">{said}</td><td class="num">{shown}</td>'
    if isinstance(value, Point):
        row += f"<td>{verdict_badge(value)}{_regression(page, value)}</td>"
        if noise:
            row += f'<td class="num">{"" if value.factor is None else times(value.factor)}</td>'
    if targets:
        row += f"<td>{targets_html(value, brief=True)}</td>"
    return mark_safe(f"{row}</tr>")  # noqa: S308 — all texts are escaped  # nosec B308, B703


def _facts(experiment: Experiment, varying: Collection[str]) -> str:
    """Return in what an experiment differs from the others of its page."""
    said = {name: getattr(experiment, name) for name in ("suite", "dtype", "mode", "backend")}
    said["arch"] = experiment.arch or experiment.device
    return escape(" · ".join(said[name] or f"unknown {name}" for name in said if name in varying))


def _processes(value: PointFields) -> str:
    facts = ["candidate" if value.side else "baseline"] if isinstance(value, SidePoint) else []
    facts += [f"{value.processes} processes"] if value.processes > 1 else []
    return f' <span class="fact">{", ".join(facts)}</span>' if facts else ""


def _regression(page: RunPage, value: Point) -> SafeString:
    """Return the regression of a result with its commits, the stream it was judged against if that is
    another one, or why its verdict is none."""
    found = SafeString("")
    one = page.results.regressions.get(value.series_id)
    if one:
        found += format_html(
            ' <a class="state" href="{}">{}{}</a>',
            link(reverse("regressions"), open=one.id),
            "still " if value.verdict == "unchanged" else "",
            one.state,
        )
    if one and one.last_good_run:
        found += format_html(
            ' <span class="fact">{} <a href="{}?base=run:{}/experiment:{}&amp;head=run:{}/experiment:{}">'
            'What changed<span class="visually-hidden"> in {}, {}</span></a></span>',
            commit_range(one.base, one.head),
            reverse("code"),
            one.last_good_run,
            value.experiment.pk,
            page.run.pk,
            value.experiment.pk,
            value.experiment.title,
            value.metric.title,
        )
    if value.level_stream:
        found += format_html(' <span class="fact">against {}</span>', value.level_stream.name)
    if value.verdict_reason:
        found += format_html(' <span class="fact">{}</span>', REASONS.get(value.verdict_reason, ""))
    return found


def times(factor: float) -> str:
    """Format a change in units of the noise; beyond a hundred, digits say nothing."""
    return f"{abs(factor):.1f}" if abs(factor) < 100 else "> 100"


@register.simple_tag
def pair_bars(line: PairLine) -> SafeString:
    """Draw a bar for the change of each pair, up for more, over the zone of no change."""
    changes = [None if ratio is None else ratio - 1 for ratio in line.ratios]
    reach = min(max((abs(change) for change in changes if change is not None), default=0.0), 2.0)
    scale = (_BARS / 2 - 1) / max(reach, 0.04)
    step = max(2.0, min(9.0, 140 / max(len(changes), 1)))
    width, zone = step * len(changes), 0.02 * scale
    tone = {True: "better", False: "worse", None: ""}[line.verdict.better]
    bars = []
    for place, change in enumerate(changes):
        if change is not None:
            end = _BARS / 2 - max(-reach, min(change, reach)) * scale
            top, height = min(end, _BARS / 2), max(abs(end - _BARS / 2), 1.0)
            bars.append(
                (
                    f"{place * step + 1:.1f}",
                    f"{top:.1f}",
                    f"{step - 2 if step > 3 else 1:.1f}",
                    f"{height:.1f}",
                )
            )
    return format_html(
        '<svg class="pair-bars" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">'
        '<rect class="zone" x="0" y="{3}" width="{0}" height="{4}"/>'
        '<line class="tick" x1="0" x2="{0}" y1="{5}" y2="{5}"/><g class="{6}">{7}</g></svg>',
        f"{width:.0f}",
        _BARS,
        f"Each pair: {', '.join(signed_percent(change) or 'no value' for change in changes)}",
        f"{_BARS / 2 - zone:.1f}",
        f"{2 * zone:.1f}",
        _BARS // 2,
        tone,
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"/>', bars),
    )


@register.simple_tag
def pairs_picture(line: PairLine) -> SafeString:
    """Draw the change of each pair, their mean and its interval, with the zone of no change."""
    changes = [None if ratio is None else ratio - 1 for ratio in line.ratios]
    ends = [value for value in (*changes, line.low, line.high, -0.04, 0.04) if value is not None]
    reach = min(max(map(abs, ends)) * 1.1, 2.0)
    bottom = _ROW * (len(changes) + 1)

    def x(change: float) -> float:
        share = (max(-reach, min(change, reach)) + reach) / (2 * reach)
        return round(_LEFT + 8 + share * (_WIDTH - _LEFT - 16), 1)

    parts = [
        format_html(
            '<rect class="zone" x="{}" y="0" width="{}" height="{}"/>', x(-0.02), x(0.02) - x(-0.02), bottom
        )
    ]
    for tick in (-reach / 1.1, 0.0, reach / 1.1):
        parts.append(format_html('<line class="tick" x1="{0}" x2="{0}" y1="0" y2="{1}"/>', x(tick), bottom))
        parts.append(
            format_html(
                '<text x="{}" y="{}" text-anchor="middle">{}</text>',
                x(tick),
                bottom + 15,
                signed_percent(tick) if tick else "0, grey: ± 2 %",
            )
        )
    for place, change in enumerate(changes):
        y = _ROW * place + _ROW / 2
        parts.append(format_html('<text x="0" y="{}">Pair {}</text>', y + 4, place))
        if change is None:
            parts.append(format_html('<text class="none" x="{}" y="{}">no value</text>', x(0) + 6, y + 4))
        else:
            parts.append(format_html('<circle class="pair" cx="{}" cy="{}" r="4"/>', x(change), y))
    y = bottom - _ROW / 2
    parts.append(format_html('<text class="mean" x="0" y="{}">Mean</text>', y + 4))
    if line.change is not None and line.low is not None:
        high = line.high if line.high is not None else reach
        parts.append(
            format_html(
                '<line class="interval" x1="{}" x2="{}" y1="{}" y2="{}"/>', x(line.low), x(high), y, y
            )
        )
        parts.append(format_html('<path class="diamond" d="M{} {}l6 6l-6 6l-6 -6z"/>', x(line.change), y - 6))
    return format_html(
        '<svg class="pairs-picture" viewBox="0 0 {} {}" role="img" aria-label="Change of each pair '
        'in {}: {}; mean {}">{}</svg>',
        _WIDTH,
        bottom + 20,
        line.metric.title,
        ", ".join("none" if change is None else f"{change:+.1%}" for change in changes),
        signed_percent(line.change) or "unknown",
        SafeString("".join(parts)),  # nosec B703 B308: of format_html
    )
