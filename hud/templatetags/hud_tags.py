"""Numbers, times and badges as every page writes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson
from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from hud.models import FIRST_RUN_ONLY, Metric
from hud.queries.targets import AppliedTarget
from hud.queries.values import MetricValue

register = template.Library()

_UNIT_ALREADY_SAID = {"", "count", "ratio"}
# Word → (icon, tone). The tone is a class of hud.css; icon and word say the same without colour.
_LOOKS = {
    "improved": ("▲", "better"),
    "regressed": ("▼", "worse"),
    "unchanged": ("=", "quiet"),
    "inconclusive": ("?", "doubt"),
    "confirmed": ("●", "active"),
    "dismissed": ("=", "quiet"),
    "new": ("+", "quiet"),
    "": ("…", "quiet"),
    "met": ("✓", "better"),
    "missed": ("✗", "worse"),
    "none": ("◎", "quiet"),
    "ok": ("✓", "better"),
    "succeeded": ("✓", "better"),
    "done": ("✓", "better"),
    "online": ("●", "better"),
    "idle": ("○", "quiet"),
    "busy": ("▶", "active"),
    "running": ("▶", "active"),
    "queued": ("…", "quiet"),
    "late": ("◔", "doubt"),
    "cannot_tell": ("?", "doubt"),
    "timed_out": ("⏱", "worse"),
    "paused": ("‖", "doubt"),
    "drained": ("⏏", "doubt"),
    "dirty": ("!", "worse"),
    "cancelled": ("⊘", "quiet"),
    "unsupported": ("—", "quiet"),
    "not_run": ("○", "quiet"),
    "detached": ("○", "quiet"),
    "gone": ("○", "quiet"),
    "in_pairs": ("⇄", "quiet"),
    "unknown": ("?", "quiet"),
}
_WORDS = {
    "": "not judged yet",
    "in_pairs": "in pairs, judged by the run",
    "cannot_tell": "cannot tell",
    "timed_out": "timed out",
    "not_run": "not run",
}
_OTHERWISE = ("✗", "worse")
_FOREIGN = "as the record says it; it was set for another device and judges nothing here"
_WORTH_A_BADGE = {"improved", "regressed", "inconclusive"}


@lru_cache(maxsize=2048)
def badge_html(key: str, text: str, title: str = "") -> SafeString:
    icon, tone = _LOOKS.get(key, _OTHERWISE)
    return format_html(
        '<span class="badge {}"{}><span class="icon" aria-hidden="true">{}</span> {}</span>',
        tone,
        format_html(' title="{}"', title) if title else "",
        icon,
        text,
    )


@register.simple_tag
def badge(word: str, title: str = "") -> SafeString:
    """A verdict, status or state by word, icon and colour."""
    return badge_html(word, _WORDS.get(word, word), title)


@register.simple_tag
def verdict_badge(value: MetricValue) -> SafeString:
    """The verdict of a measurement, with the change and its noise where the judge said them."""
    text = _WORDS.get(value.verdict, value.verdict)
    if value.change is not None and value.verdict not in ("", "new", "in_pairs"):
        text = f"{text} {signed_percent(value.change)}"
    noise = f"noise of the series {value.noise:.2%}, " if value.noise is not None else ""
    factor = f"{noise}change is {abs(value.factor):.1f} times that" if value.factor is not None else ""
    return badge_html(value.verdict, text, factor)


def target_badge(target: AppliedTarget, value: MetricValue, brief: bool = False) -> SafeString:
    """``A100-40GB target 950: met``. A target of another arch colours nothing but this badge."""
    median, direction = value.median, value.metric.direction
    why = target.how if target.own else _FOREIGN
    return badge_html(target.met_by(median, direction), target.verdict(median, direction, brief=brief), why)


@register.simple_tag
def value_html(value: MetricValue) -> SafeString:
    """The number with its unit and the spread of its samples, or why there is none.

    In Python like the other tags of table rows: a template for each of hundreds of cells costs more
    than everything else on a page.
    """
    metric = value.metric
    status = _WORDS.get(value.status, value.status)
    if value.median is None:
        code = value.code if value.code != value.status else None
        shown = format_html(" <code>{}</code>", code) if code else ""
        reason = format_html(' <span class="reason">{}</span>', value.reason) if value.reason else ""
        return format_html("{}{}{}", badge_html(value.status, status), shown, reason)
    return format_html(
        '<span class="value">{}</span>{}{}{}',
        quantity(value.median, metric),
        format_html(' <span class="spread" title="{}">± {}</span>', _spread_of(value), percent(value.spread))
        if value.spread
        else "",
        noisy_mark(value) + first_run_mark(value),
        format_html(" {}", badge_html(value.status, status, _why(value))) if value.status_code else "",
    )


def _why(value: MetricValue) -> str:
    """Of a status beside a number: its code, and the reason in words."""
    return ": ".join(filter(None, (value.code, value.reason)))


def _spread_of(value: MetricValue) -> str:
    """What stands behind ±."""
    if value.processes > 1:
        return (
            f"median of {value.processes} fresh processes; ± is the middle robust spread of their"
            f" {value.n} samples; not a confidence interval"
        )
    return f"robust spread of the {value.n} samples of one process; not a confidence interval"


def noisy_mark(value: MetricValue) -> SafeString:
    """A word beside a number whose samples spread by more than twice the change that counts."""
    spread, floor = value.spread, value.metric.floor
    if not spread or spread <= 2 * floor or value.metric.kind != "timing":
        return SafeString("")
    return format_html(
        ' <span class="tag" title="its samples spread by {}; for this metric a change of {} counts">'
        '<span aria-hidden="true">≈</span> noisy</span>',
        percent(spread),
        f"{floor:.0%}",
    )


def first_run_mark(value: MetricValue) -> SafeString:
    """A word beside a time that others leave out."""
    if FIRST_RUN_ONLY not in (value.warning or ""):
        return SafeString("")
    return format_html(' <span class="tag" title="{}">first run</span>', FIRST_RUN_ONLY)


@register.simple_tag
def targets_html(value: MetricValue, brief: bool = False) -> SafeString:
    """The badges of all targets that a number has."""
    return mark_safe(" ".join(target_badge(target, value, brief) for target in value.targets))  # noqa: S308


@register.simple_tag
def cell_html(value: MetricValue | None) -> SafeString:
    """A narrow cell: the number, then what colours it."""
    if value is None:
        return SafeString('<span class="dim" title="never measured">·</span>')
    metric = value.metric
    if value.median is None:
        word = value.code or value.status
        status = _WORDS.get(value.status, value.status)
        return badge_html(
            value.status, _WORDS.get(word, word), ": ".join(filter(None, (status, value.reason)))
        )
    parts = [f'<span class="value">{number(value.median, metric)}</span>']
    if value.status != "ok":
        parts.append(badge_html(value.status, _WORDS.get(value.status, value.status), _why(value)))
    parts += [noisy_mark(value), first_run_mark(value)]
    if value.verdict in _WORTH_A_BADGE:
        parts.append(verdict_badge(value))
    parts += [target_icon(target, value) for target in value.targets]
    return mark_safe(" ".join(filter(None, parts)))  # noqa: S308 — a number, and badges that are escaped


def target_icon(target: AppliedTarget, value: MetricValue) -> SafeString:
    """A target's badge in a narrow cell: met or missed, the whole sentence in its title."""
    met = target.met_by(value.median, value.metric.direction)
    sentence = target.verdict(value.median, value.metric.direction)
    icon, tone = _LOOKS[met]
    shown = "" if target.own else f" {target.brief.replace(' target ', ' ')}"
    return format_html(
        '<span class="badge small {}" title="{}"><span class="icon" aria-hidden="true">{}</span>'
        '<span class="visually-hidden">{}</span><span aria-hidden="true">{}</span></span>',
        tone if target.own else "quiet",
        sentence,
        icon,
        sentence,
        shown,
    )


@register.filter
def number(value: float | None, metric: Metric) -> str:
    """With the metric's precision; small values keep three digits that mean something."""
    if value is None:
        return "—"
    if metric.unit == "B":
        return bytes_text(value)
    if value and abs(value) < 10.0 ** (2 - metric.precision):
        return f"{value:.3g}"
    return f"{value:.{metric.precision}f}"


@register.filter
def quantity(value: float | None, metric: Metric) -> str:
    """``2542.40 GB/s``."""
    if value is None or metric.unit == "B" or metric.unit in _UNIT_ALREADY_SAID:
        return number(value, metric)
    return f"{number(value, metric)} {metric.unit}"


@register.filter
def unit(metric: Metric) -> str:
    """What stands beside a metric's name in a table's head."""
    return "" if metric.unit in _UNIT_ALREADY_SAID | {"B"} else metric.unit


@register.filter
def better(metric: Metric) -> str:
    return {"up": "more is better", "down": "less is better"}.get(metric.direction, "no direction")


@register.filter
def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}" if abs(share) < 0.1 else f"{share:.0%}"


@register.filter
def signed_percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


@register.filter
def p_value(p: float) -> str:
    """``0.031``; what rounds to nothing as ``< 0.0001``."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


@register.filter
def pair_side(process: int) -> str:
    """Of a run in pairs (`Run.base_environment`): ``pair 2, new``."""
    return f"pair {process // 2}, {'new' if process % 2 else 'base'}"


@register.filter
def bytes_text(size: float | None) -> str:
    if size is None:
        return "—"
    for step, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= step:
            return f"{size / step:.2f} {name}"
    return f"{size:.0f} B"


@register.filter
def duration(seconds: float | None) -> str:
    """``1 h 5 min``, ``3 min 20 s``, ``4.2 s``."""
    if seconds is None:
        return "—"
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """A time element: ``5 min ago``, with the exact time in its title."""
    if moment is None:
        return "never"
    seconds = (timezone.now() - moment).total_seconds()
    words = "just now"
    if seconds >= 5:
        words = f"{_coarse(seconds)} ago"
    elif seconds <= -5:
        words = f"in {_coarse(-seconds)}"
    exact = moment.isoformat(" ", "seconds").removesuffix("+00:00")
    return mark_safe(  # noqa: S308 — numbers and our own words
        f'<time datetime="{moment.isoformat()}" title="{exact} UTC">{words}</time>'
    )


def _coarse(seconds: float) -> str:
    for step, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * step or (step < 86_400 and seconds >= step):
            return f"{int(seconds // step)} {name}"
    return f"{int(seconds)} s"


@register.filter
def moment(value: datetime) -> SafeString:
    """The exact time, short."""
    return format_html('<time datetime="{}">{}</time>', value.isoformat(), f"{value:%Y-%m-%d %H:%M}")


@register.filter
def plain(name: str) -> str:
    """A field's name as a person reads it."""
    return name.replace("_", " ")


@register.simple_tag
def figure(content: dict[str, Any], name: str, label: str) -> SafeString:
    """A chart: `charts.js` draws what stands in the data block behind it. `name` is unique on the page."""
    data = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    for char in "<>&":  # a data block ends at the first "</script" that stands in it
        data = data.replace(char, f"\\u{ord(char):04x}")
    return format_html(
        '<div class="chart" data-figure="{0}" role="img" aria-label="{1}"></div>'
        '<script type="application/json" id="{0}">{2}</script>',
        name,
        label,
        mark_safe(data),  # noqa: S308 — escaped above
    )


@register.simple_tag
def sparkline(values: Sequence[float]) -> SafeString | str:
    """The last values as a small line, drawn here so that the page needs no script for it."""
    if not values:
        return ""
    low, high = min(values), max(values)
    height = (high - low) or 1.0
    step = 76 / max(len(values) - 1, 1)
    points = [
        (2 + index * step, 10.0 if high == low else 18 - 16 * (value - low) / height)
        for index, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    label = f"last {len(values)} values, {low:.4g} to {high:.4g}, now {values[-1]:.4g}"
    return mark_safe(  # noqa: S308 — numbers
        f'<svg class="spark" viewBox="0 0 80 20" width="80" height="20" role="img" aria-label="{label}">'
        f'<title>{label}</title><polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2"/></svg>'
    )
