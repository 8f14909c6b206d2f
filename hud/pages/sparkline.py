"""Small lines and intervals that the server draws: no script.

The height spans at least 8 times the noise, so that a quiet series looks quiet. The grey band is the noise
around the accepted level; only the points since a change are coloured, and the last point is a dot. A missing
value is a cross on a dotted line where it failed, else a gap.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from django.utils.safestring import SafeString, mark_safe

from runner.schema.statistics import median

Tone = Literal["worse", "better"]
TONES = {"regressed": "w", "failed": "w", "improved": "g", "inconclusive": "u"}  # of intervals, by verdict
_LEAST_NOISE = 0.002  # relative, where the values alone tell their noise


def sparkline(
    values: Sequence[float | None],
    *,
    level: float | None = None,
    noise: float | None = None,  # relative; None: that of the steps between the values
    moved: int = 0,  # newest points that are coloured
    tone: Tone = "worse",
    size: tuple[int, int] = (108, 24),
    crosses: bool = False,  # a missing value is a failure
    label: str = "",  # '': hidden from screen readers, as its cell says the same
) -> SafeString:
    """Return the values, oldest first, as an SVG; '' without any."""
    there = [value for value in values if value is not None]
    if not there:
        return SafeString("")
    middle = level if level is not None else median(there)
    band = abs(middle) * (noise if noise is not None else _noise_of(there, middle))
    reach = [*there, middle]
    low, high = min(*reach, middle - 4 * band), max(*reach, middle + 4 * band)
    width, height = size
    scale = (height - 6) / ((high - low) or 1.0)
    floor = height / 2 if high == low else height - 3
    first = len(values) - moved
    step = (width - 6) / max(len(values) - 1, 1)
    xs = [3 + index * step for index in range(len(values))]
    spots = [
        f"{x:.1f},{floor - scale * (value - low):.1f}" if value is not None else ""
        for x, value in zip(xs, values, strict=True)
    ]
    parts = []
    if level is not None and band:
        top, bottom = (floor - scale * (value - low) for value in (middle + band, middle - band))
        parts.append(f'<rect y="{top:.1f}" width="{width}" height="{max(bottom - top, 1):.1f}" rx="1"/>')
    missing = [index for index, value in enumerate(values) if value is None] if crosses else []
    if missing:
        y = floor - scale * (middle - low)
        parts.append(f'<path class="dots" d="M3 {y:.1f}H{width - 3}"/>')
        parts += [
            f'<path class="cross" d="M{xs[index] - 2.5:.1f} {y - 2.5:.1f}l5 5m0-5l-5 5"/>'
            for index in missing
        ]
    quiet, coloured = (
        " ".join(filter(None, part))
        for part in (spots[: first or None], spots[max(first - 1, 0) :] if moved else [])
    )
    parts.append(f'<polyline points="{quiet}"/>')
    if coloured:
        parts.append(f'<polyline class="{tone}" points="{coloured}"/>')
    x, _comma, last = next(filter(None, reversed(spots))).partition(",")
    dot = f' class="{tone}"' if moved else ""
    parts.append(f'<circle{dot} cx="{x}" cy="{last}" r="2.2"/>')
    role = 'role="img"' if label else 'aria-hidden="true"'
    title = f"<title>{label}</title>" if label else ""
    return mark_safe(  # noqa: S308 - numbers, and a label of numbers  # nosec B308, B703
        f'<svg class="spark" width="{width}" height="{height}" viewBox="0 0 {width} {height}" {role}>'
        f"{title}{''.join(parts)}</svg>"
    )


def interval(
    value: float,
    low: float,
    high: float,
    *,
    axis: tuple[float, float],  # that all rows of the column share; what is beyond it ends at its edge
    noise: tuple[float, float] = (0.0, 0.0),  # the grey band
    tone: str = "",  # w worse, g better, u in doubt
    width: int = 160,
    label: str = "",  # '': hidden from screen readers, as the row says the same
) -> SafeString:
    """Return an estimate with its interval as an SVG: a dot on a line, a grey band, and a line at zero."""
    start, end = axis

    def x_of(number: float) -> str:
        return f"{4 + (width - 8) * max(0.0, min(1.0, (number - start) / (end - start))):.1f}"

    left, right = (x_of(edge) for edge in noise)
    role = f'role="img" aria-label="{label}"' if label else 'aria-hidden="true"'
    return mark_safe(  # noqa: S308 - numbers, and a label of numbers  # nosec B308, B703
        f'<svg class="fp" viewBox="0 0 {width} 20" width="{width}" height="20" {role}>'
        f'<rect class="band" x="{left}" width="{float(right) - float(left):.1f}" y="0" height="20"/>'
        f'<line class="zero" x1="{x_of(0)}" x2="{x_of(0)}" y1="0" y2="20"/>'
        f'<line class="ci {tone}" x1="{x_of(low)}" x2="{x_of(high)}" y1="10" y2="10"/>'
        f'<circle class="pt {tone}" cx="{x_of(value)}" cy="10" r="3.4"/></svg>'
    )


def change_interval(
    change: float | None, margin: float | None, noise: float, verdict: str, reach: float
) -> SafeString:
    """Return a change ± a margin by its verdict, on an axis of changes up to `reach` either way; '' without
    a change."""
    if change is None:
        return SafeString("")
    ends = change - (margin or 0.0), change + (margin or 0.0)
    tone = TONES.get(verdict, "")
    return interval(change, *ends, axis=(-reach, reach), noise=(-noise, noise), tone=tone)


def _noise_of(values: Sequence[float], middle: float) -> float:
    """Return the relative noise from the steps between neighbours, so that one jump does not count."""
    if len(values) < 3 or not middle:
        return _LEAST_NOISE
    steps = [abs(after - before) for before, after in pairwise(values)]
    return max(median(steps) / abs(middle), _LEAST_NOISE)
