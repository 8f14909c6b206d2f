"""From the values of a chart to pixels: the range of its axis, and round ticks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hud.models import Metric
from hud.pages.charts.choice import ScaleName
from hud.pages.charts.multiples import Chart
from hud.tables.formatting import bytes_text

TALL, LOW = 196, 96  # pixels
_SPAN = 4  # the axis reaches at least so many times the noise to either side of the level


@dataclass(frozen=True)
class Scale:
    """From values to pixels from the top."""

    low: float
    high: float
    height: int
    of: Callable[[float], float] = float
    name: ScaleName = "absolute"
    metric: Metric | None = None
    has_values: bool = True

    def y(self, value: float) -> float:
        return self._pixel(self.of(value))

    def _pixel(self, place: float) -> float:
        share = (place - self.low) / (self.high - self.low)
        return self.height - 6 - (self.height - 12) * min(max(share, 0.0), 1.0)

    def holds(self, value: float) -> bool:
        return self.low <= self.of(value) <= self.high

    @cached_property
    def ticks(self) -> list[tuple[float, str]]:
        """Return 2 to 6 round ticks as pixels and text; none without values."""
        if not self.has_values:
            return []
        raw = (self.high - self.low) / (6 if self.height >= TALL else 4)
        power = 10.0 ** math.floor(math.log10(raw))
        step, half = next((power * size, size == 2.5) for size in (1, 2, 2.5, 5, 10) if power * size >= raw)
        digits = max(0, half - math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step)
        places = [step * (first + number) for number in range(int(self.high / step - first + 1e-9) + 1)]
        hundred = 100 if self.metric and self.metric.unit == "ratio" and self.name != "relative" else 1

        def text_of(place: float) -> str:
            if self.name == "log":
                return f"{10**place * hundred:.3g}"
            if self.name == "relative":
                return f"{place:+.{digits}f} %" if abs(place) > step / 1e6 else "0 %"
            if self.metric and self.metric.unit == "B":
                return bytes_text(place).replace(".00 ", " ")
            shown, decimals = place * hundred, max(digits - 2, 0) if hundred > 1 else digits
            return f"{shown + 0.0:,.{decimals}f}" if abs(place) < 1e6 else f"{shown:.3g}"

        return [(self._pixel(place), text_of(place).replace("-", "−")) for place in places]


def scale_of(row: Chart, name: ScaleName, height: int) -> Scale:
    """Return the axis of a chart. A guide farther off than the values are apart does not stretch it."""
    spots = [*row.spots.values(), *(row.beside.spots.values() if row.beside else ())]
    values = [value for spot in spots for _number, value in spot.compilations]
    values += [
        spot.value for over in row.overlays.values() for spot in over.values() if spot.value is not None
    ]
    level = row.point.level if row.point.level is not None else row.point.value
    of = _transform(name, level, values)
    least, most = (min(values), max(values)) if values else (0.0, 1.0)
    low, high = sorted((of(least), of(most)))
    if level is not None:
        air = _SPAN * abs(level) * (row.point.noise or 0.0)
        ends = [of(value) for value in (level - air, level, level + air) if value > 0 or name != "log"]
        low, high = min(low, *ends), max(high, *ends)
    for kind, value in row.guides:
        place = of(value) if kind == "target" else low
        if low - (high - low) <= place <= high + (high - low):
            low, high = min(low, place), max(high, place)
    low, high = padded(low, high)
    if name == "absolute" and least >= 0:
        low = max(low, 0.0)
    name = name if of is not float else "absolute"
    return Scale(low, high, height, of, name, row.metric, has_values=bool(values))


def _transform(name: ScaleName, level: float | None, values: Sequence[float]) -> Callable[[float], float]:
    if name == "log" and values and min(values) > 0:
        return lambda value: math.log10(max(value, 1e-300))
    if name == "relative" and level:
        return lambda value: 100 * (value / level - 1)
    return float


def padded(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis with some air."""
    air = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return low - air, high + air
