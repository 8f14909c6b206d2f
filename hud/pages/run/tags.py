"""Template tags of the page of a run: its findings, and pairs as a picture."""

from html import escape

from django import template
from django.utils.safestring import SafeString

from hud.judging.comparison import MetricComparison
from hud.pages.run.results import RunResults
from hud.points.summaries import LABELS
from hud.tables.formatting import p_value, signed_percent
from hud.tables.html import badge_html, icon_html, join, span
from runner.schema.compilations import shown_word
from runner.schema.records import quality_words

register = template.Library()

_BADGES = ("regressed", "failed", "missed")  # shown beside the state
_WIDTH, _ROW, _LEFT = 560, 22, 62  # of the picture of pairs, px
_BARS = 28  # height of a line's bars, px
_TONES = {True: "better", False: "worse", None: ""}


@register.simple_tag
def kind_label(kind: str) -> SafeString:
    icon, word, _words = LABELS[kind]
    return join(icon_html(icon), word)


register.filter(quality_words)


@register.simple_tag
def finding_badges(results: RunResults) -> SafeString:
    """Show beside a run's state how many experiments are worse: "succeeded" alone would hide them."""
    shown = ((kind, results.counts[kind].experiments) for kind in _BADGES if kind in results.counts)
    words = ((kind, f"{count} experiment{'s' * (count > 1)} {LABELS[kind][1]}") for kind, count in shown)
    return join(*(badge_html(kind, text) for kind, text in words))


@register.simple_tag
def code_badge(word: str, obstacle: str) -> SafeString:
    """Show an answer on the code, with the reason where the draw may still hide a change."""
    return badge_html(shown_word(word, obstacle), title=obstacle)


@register.simple_tag
def change_cell(
    ratio: float | None, low: float | None = None, high: float | None = None, p: float | None = None
) -> SafeString:
    """Return a ratio as a change, with its interval and p below it."""
    if ratio is None:
        return SafeString()
    ends = "" if low is None or high is None else f"{signed_percent(low - 1)} to {signed_percent(high - 1)}"
    below = (span(line, "under faint") for line in (ends, "" if p is None else f"p {p_value(p)}"))
    return join(signed_percent(ratio - 1), *below, by="")


@register.simple_tag
def pair_bars(line: MetricComparison) -> SafeString:
    """Draw a bar for the change of each pair, up for more, over the zone of no change."""
    reach = min(max((abs(change) for change in line.changes if change is not None), default=0.0), 2.0)
    scale, middle = (_BARS / 2 - 1) / max(reach, 0.04), _BARS / 2
    step = max(2.0, min(9.0, 140 / max(len(line.changes), 1)))
    width, zone = f"{step * len(line.changes):.0f}", 0.02 * scale
    bars = ""
    for index, change in enumerate(line.changes):
        if change is not None:
            end = middle - max(-reach, min(change, reach)) * scale
            top, height = min(end, middle), max(abs(end - middle), 1.0)
            bar = step - 2 if step > 3 else 1
            bars += (
                f'<rect x="{index * step + 1:.1f}" y="{top:.1f}" width="{bar:.1f}" height="{height:.1f}"/>'
            )
    label = ", ".join(signed_percent(change) or "no value" for change in line.changes)
    return SafeString(
        f'<svg class="pair-bars" viewBox="0 0 {width} {_BARS}" width="{width}" height="{_BARS}" role="img"'
        f' aria-label="Each {"draw" if line.draws else "pair"}: {label}">'
        f'<rect class="zone" x="0" y="{middle - zone:.1f}" width="{width}" height="{2 * zone:.1f}"/>'
        f'<line class="tick" x1="0" x2="{width}" y1="{middle:.0f}" y2="{middle:.0f}"/>'
        f'<g class="{_TONES[line.better]}">{bars}</g></svg>'
    )


@register.simple_tag
def pairs_picture(line: MetricComparison) -> SafeString:
    """Draw the change of each pair, their mean and its interval, with the zone of no change."""
    ends = [value for value in (*line.changes, line.low, line.high, -0.04, 0.04) if value is not None]
    reach = min(max(map(abs, ends)) * 1.1, 2.0)
    bottom = _ROW * (len(line.changes) + 1)
    name = "Draw" if line.draws else "Pair"

    def x(change: float) -> float:
        share = (max(-reach, min(change, reach)) + reach) / (2 * reach)
        return round(_LEFT + 8 + share * (_WIDTH - _LEFT - 16), 1)

    parts = [f'<rect class="zone" x="{x(-0.02)}" y="0" width="{x(0.02) - x(-0.02)}" height="{bottom}"/>']
    for tick in (-reach / 1.1, 0.0, reach / 1.1):
        text = signed_percent(tick) if tick else "0, grey: ± 2 %"
        parts.append(
            f'<line class="tick" x1="{x(tick)}" x2="{x(tick)}" y1="0" y2="{bottom}"/>'
            f'<text x="{x(tick)}" y="{bottom + 15}" text-anchor="middle">{text}</text>'
        )
    for index, change in enumerate(line.changes):
        y = _ROW * index + _ROW / 2
        parts.append(f'<text x="0" y="{y + 4}">{name} {index}</text>')
        if change is None:
            parts.append(f'<text class="none" x="{x(0) + 6}" y="{y + 4}">no value</text>')
        else:
            parts.append(f'<circle class="pair" cx="{x(change)}" cy="{y}" r="4"/>')
    y = bottom - _ROW / 2
    parts.append(f'<text class="mean" x="0" y="{y + 4}">Mean</text>')
    if line.change is not None and line.low is not None:
        high = line.high if line.high is not None else reach
        parts.append(
            f'<line class="interval" x1="{x(line.low)}" x2="{x(high)}" y1="{y}" y2="{y}"/>'
            f'<path class="diamond" d="M{x(line.change)} {y - 6}l6 6l-6 6l-6 -6z"/>'
        )
    label = ", ".join("none" if change is None else f"{change:+.1%}" for change in line.changes)
    mean = signed_percent(line.change) or "unknown"
    return SafeString(
        f'<svg class="pairs-picture" viewBox="0 0 {_WIDTH} {bottom + 20}" role="img"'
        f' aria-label="Change of each {name.lower()} in {escape(line.metric.title)}: {label}; mean {mean}">'
        f"{''.join(parts)}</svg>"
    )
