"""Numbers, times and addresses as pages write them."""

from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from hud.models import Metric
from hud.tables.html import attributes, link

NONE = "–"
_NO_UNIT = {"", "count"}
_SIGNS = {"x": "×", "ratio": "%", "B": "", **dict.fromkeys(_NO_UNIT, "")}  # of units, as they are shown
_LONG_NAME = 60  # characters


def percent(share: float | None) -> str:
    """Write ``0.31 %``, ``12 %``."""
    if share is None:
        return ""
    return (f"{share:.2%}" if abs(share) < 0.1 else f"{share:.0%}").replace("-", "−").replace("%", " %")


def long_name(title: str) -> SafeString:
    """Return attributes that cut a long name to two lines and keep it whole as its tooltip; '' for others."""
    return SafeString(attributes(css="long-name", title=title) if len(title) > _LONG_NAME else "")


def signed_percent(share: float | None) -> str:
    """Write ``−12.0 %``; ``0.0 %`` has no sign, and what more than doubled is written without decimals."""
    if share is None:
        return ""
    text = f"{share:+.0%}" if abs(share) >= 1 else f"{share:+.1%}"
    if text in {"+0.0%", "-0.0%"}:
        text = "0.0%"
    return text.replace("-", "−").replace("%", " %")


def p_value(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def bytes_text(size: float | None) -> str:
    if size is None:
        return "—"
    for step, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= step:
            return f"{size / step:.2f} {name}"
    return f"{size:.0f} B"


def duration(seconds: float | None) -> str:
    """Format as ``1 h 5 min``, ``3 min 20 s`` or ``4.2 s``."""
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


def ago(moment: datetime | None) -> SafeString | str:
    """Return a time element, ``5 min ago``, with the exact time in its title."""
    if moment is None:
        return "never"
    seconds = (timezone.now() - moment).total_seconds()
    words = "just now"
    if seconds >= 5:
        words = f"{_coarse(seconds)} ago"
    elif seconds <= -5:
        words = f"in {_coarse(-seconds)}"
    return _time(moment, words)


def _coarse(seconds: float) -> str:
    for step, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * step or (step < 86_400 and seconds >= step):
            return f"{int(seconds // step)} {name}"
    return f"{int(seconds)} s"


def moment(value: datetime | None) -> SafeString:
    """Return a time element that `page.js` turns into the reader's time, with UTC in its title."""
    return _time(value, f"{value:%Y-%m-%d %H:%M} UTC", " data-local") if value else SafeString("")


def _time(moment: datetime, words: str, attribute: str = "") -> SafeString:
    exact = moment.isoformat(" ", "seconds").removesuffix("+00:00")
    return SafeString(f'<time datetime="{moment.isoformat()}" title="{exact} UTC"{attribute}>{words}</time>')


@lru_cache(maxsize=4096)
def address(pk: int | str, name: str) -> str:
    """Return the address of a page, as the tag `url` does at six times the cost."""
    return reverse(name, args=[pk])


def run_link(pk: int, content: object = "") -> SafeString:
    return link(address(pk, "run"), content or pk)


def second(moment: datetime) -> str:
    """Write ``2026-01-31 23:59:59``, at a tenth of what the filter `date` takes."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def plain(name: str) -> str:
    return name.replace("_", " ")


def json_text(value: Any) -> str:
    """Return text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def plain_count(count: float | None) -> str:
    """Format a mean of counts: ``2``, ``2.5``."""
    return NONE if count is None else f"{count:.3g}" if count % 1 else f"{count:.0f}"


def thousandths(value: float | None, longest: float) -> str:
    """Return the width of a bar of which the longest has 1000 units."""
    return f"{1000 * (value or 0.0) / longest:.1f}" if longest else "0"


def share(part: float | None) -> str:
    """Format a part of 1: ``94 %``, small ones as ``2.9 %``."""
    return NONE if part is None else f"{100 * part:.{0 if abs(part) >= 0.1 else 1}f} %".replace("-", "−")


def signed(value: float, digits: int) -> str:
    """Write a change with its sign; nothing is ``0`` and never ``−0.0000``."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if not any(char in "123456789" for char in text) else text


def signed_share(part: float | None) -> str:
    """Format a part of 1 as ``+204 %``, small ones as ``−1.6 %``."""
    return "" if part is None else f"{signed(100 * part, 0 if abs(part) >= 0.1 else 1)} %"


def seconds(value_s: float | None) -> str:
    return NONE if value_s is None else f"{value_s:.2f}"


def signed_seconds(value_s: float | None) -> str:
    return NONE if value_s is None else signed(value_s, 2)


def magnitude(value: float) -> str:
    """Format a number of noises: ``12``, ``2.6``."""
    return f"{abs(value):.0f}" if abs(value) >= 10 else f"{abs(value):.1f}"


def microseconds(us: float) -> str:
    return f"{us:.1f}"


def milliseconds(us: float) -> str:
    return f"{us / 1e3:.{1 if us >= 1e3 else 3}f}"


def number(value: float | None, metric: Metric) -> str:
    """Format with the metric's precision, a ratio in per cent; small values keep three significant digits."""
    if value is None:
        return "—"
    if metric.unit == "B":
        return bytes_text(value)
    digits = metric.precision
    if metric.unit == "ratio":
        value, digits = value * 100, max(digits - 2, 0)
    if value and abs(value) < 10.0 ** (2 - digits):
        return f"{value:.3g}"
    return f"{value:.{digits}f}"


def quantity(value: float | None, metric: Metric) -> str:
    """Format with the unit, as ``2542.40 GB/s``."""
    if value is None or metric.unit == "B" or metric.unit in _NO_UNIT:
        return number(value, metric)
    return f"{number(value, metric)} {unit(metric)}"


def unit(metric: Metric) -> str:
    """Return the unit to show beside a metric's name in a table's head."""
    return _SIGNS.get(metric.unit, metric.unit)


def better(metric: Metric) -> str:
    return {"up": "higher is better", "down": "lower is better"}.get(metric.direction, "no direction")
