"""Charts of the experiment page as SVG, drawn here so that they need no script, print, and take the page's
colours. x is in per cent and y in pixels, so that one drawing fits every width and texts keep their size.
Lines are in a nested drawing of 1000 units that is stretched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from hud.models import Metric
from hud.pages.experiment.multiples import Key, Row, Slot, slot_of_time
from hud.runs.branches import other_branch
from hud.templatetags.hud_tags import bytes_text, quantity
from runner.schema.statistics import ValueRule, value_of

WIDTH = 1000.0
TALL, LOW, STRIP, FOOT = 196, 96, 14, 34
SHAPES = 8  # of the most frequent variants; further ones share the last
_MOST_TICKS = 6
_LABEL = 26  # characters beside an event
_APART = 240.0  # between the labels of two events
_SAMPLES = 400
_SPAN = 4  # the axis reaches at least so many times the noise to either side of the level

Places = Iterable[tuple[float | None, float | None]]


@dataclass(frozen=True)
class Look:
    """How the charts are drawn."""

    axis: Literal["even", "date"] = "even"
    scale: Literal["absolute", "relative", "log"] = "absolute"
    marks: Literal["each", "medians"] = "each"


@dataclass(frozen=True)
class Event:
    """A line through all charts."""

    kind: Literal["change", "level", "step", "note"]
    x: float
    text: str


@dataclass
class Canvas:
    """What all charts share. `shapes` has the place in the legend of each compilation with a known variant,
    by run and number; `expected` the busy time in ms that its choices have in history."""

    slots: Sequence[Slot]
    look: Look
    events: list[Event] = field(default_factory=list)
    shapes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    expected: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.slots)
        self.step = WIDTH / max(count, 1)
        self.xs = [self.step * (place + 0.5) for place in range(count)]
        if self.look.axis == "date" and count > 1:
            times = [slot.time.timestamp() for slot in self.slots]
            length = (times[-1] - times[0]) or 1.0
            self.xs = [20 + 960 * (time - times[0]) / length for time in times]
            self.step = min(self.step, 12.0)
        self.by_key = {slot.key: x for slot, x in zip(self.slots, self.xs, strict=True)}

    def x_of(self, key: Key) -> float | None:
        """Return the place of a point; one of another experiment stands at the run before it."""
        if key in self.by_key:
            return self.by_key[key]
        place = slot_of_time(self.slots, key[0])
        return self.xs[place] if place >= 0 else None


@dataclass(frozen=True)
class Scale:
    """From values to pixels from the top, with the ticks of the axis."""

    low: float
    high: float
    height: int
    of: Callable[[float], float]
    ticks: list[tuple[float, str]]  # pixels, text

    def y(self, value: float) -> float:
        return _pixel(self.of(value), self.low, self.high, self.height)

    def holds(self, value: float) -> bool:
        return self.low <= self.of(value) <= self.high


def chart(row: Row, canvas: Canvas, *, tall: bool) -> SafeString:
    """Return a metric's chart: values with their level, noise, target, and the events of all charts."""
    scale = _scale(row, canvas.look, TALL if tall else LOW)
    lines = [*_lines(row, canvas, scale), *_ranges(row, canvas, scale)]
    marks = _marks(row, canvas, scale, shaped=tall and bool(canvas.shapes))
    if row.beside:
        marks += _marks(row.beside, canvas, scale, extra=" beside")
    for number, spots in enumerate(row.overlays.values()):
        places = [(canvas.x_of(key), spot.value) for key, spot in spots.items()]
        lines.append(f'<path class="overlay o{number}" d="{_path(places, scale)}"/>')
        marks += [
            f'<use class="o{number}" href="#m-dot" x="{x / 10:.2f}%" y="{scale.y(value):.1f}"/>'
            for x, value in places
            if x is not None and value is not None
        ]
    said = f"{row.metric.title}, {len(row.spots)} points"
    if row.newest is not None:
        said += f", newest {row.newest:.4g} {row.metric.unit}"
    if row.level is not None:
        said += f", accepted level {row.level:.4g}"
    return _svg(scale.height, said, lines, [*marks, *_labels(row, scale)])


def strip(row: Row, canvas: Canvas) -> SafeString:
    """Return a cell for each run: dark where its result is good."""
    cells = []
    width = max(canvas.step * 0.8, 2.0)
    numbers = [spot.value for spot in row.spots.values() if spot.value is not None]
    usual = min(numbers, default=0.0) if row.metric.kind != "status" else math.inf
    for key, spot in row.spots.items():
        x = canvas.by_key[key] - width / 2
        tone = "bad" if spot.failed or (spot.value or 0.0) > usual else "some" if spot.value else "good"
        cells.append(f'<rect class="{tone}" x="{x:.1f}" y="1" width="{width:.1f}" height="{STRIP - 2}"/>')
    bad_runs = sum('class="bad"' in cell for cell in cells)
    now = f'<text class="tick start" x="100%" dx="6" y="11">{row.newest:g}</text>' if numbers else ""
    return _svg(STRIP, f"{row.metric.title}: {len(cells)} runs, {bad_runs} worse", cells, [now])


def hosts(canvas: Canvas) -> SafeString:
    """Return a band for each stretch of runs on one host."""
    cells: list[str] = []
    texts: list[str] = []
    start = 0
    slots, half = canvas.slots, canvas.step / 2
    for place in range(1, len(slots) + 1):
        if place < len(slots) and slots[place].host == slots[start].host:
            continue
        x, end = canvas.xs[start] - half, canvas.xs[place - 1] + half
        odd = " odd" if len(texts) % 2 else ""
        cells.append(
            f'<rect class="host{odd}" x="{x:.1f}" y="1" width="{max(end - x, 2):.1f}" height="{STRIP - 2}"/>'
        )
        name = escape(slots[start].host or "unknown") if end - x > 90 else ""
        texts.append(f'<text class="tick start" x="{x / 10:.2f}%" dx="4" y="10.5">{name}</text>')
        start = place
    return _svg(STRIP, "Host of each run", cells, texts)


def axis(canvas: Canvas) -> SafeString:
    """Return the dates with the commits of some runs."""
    every = -(-len(canvas.slots) // _MOST_TICKS) or 1
    texts: list[str] = []
    last = -WIDTH
    for place in range(0, len(canvas.slots), every):
        slot, x = canvas.slots[place], canvas.xs[place]
        if x - last < WIDTH / (_MOST_TICKS + 2):
            continue
        last, odd = x, " odd" if len(texts) % 2 else ""
        texts.append(
            f'<text class="tick middle{odd}" x="{x / 10:.2f}%" y="12">{slot.time:%-d %b}</text>'
            f'<text class="tick middle code{odd}" x="{x / 10:.2f}%" y="27">{escape(slot.commit[:7])}</text>'
        )
    return _svg(FOOT, "Dates and commits", [], texts)


def heads(canvas: Canvas) -> SafeString:
    """Return the labels of the events, above the first chart; the notes below the charts have them all."""
    texts: list[str] = []
    named: list[float] = []
    icons = {"change": "▼", "level": "▬", "step": "◆", "note": "✎"}
    for event in sorted(canvas.events, key=lambda one: (one.kind != "change", one.x)):
        near = any(abs(event.x - x) < _APART for x in named)
        words = event.text if len(event.text) <= _LABEL else event.text[: _LABEL - 1] + "…"
        text = icons[event.kind] if near else f"{icons[event.kind]} {escape(words)}"
        late = event.x > 880 and not near
        if not near:
            named.append(event.x)
        anchor = "end" if late else "start"
        texts.append(
            f'<text class="tick {anchor} {event.kind}" x="{event.x / 10:.2f}%"'
            f' dx="{4 if late else -3}" y="12"><title>{escape(event.text)}</title>{text}</text>'
        )
    return _svg(16, "Changes, environment steps and notes", [], texts)


def samples(values: Sequence[float], metric: Metric, rule: ValueRule) -> SafeString:
    """Return all samples of one measurement in measured order, with the resulting value."""
    every = -(-len(values) // _SAMPLES)
    drawn = values[::every]
    middle = value_of(values, rule)
    low, high = _padded(min(*drawn, middle), max(*drawn, middle))
    scale = Scale(low, high, LOW, float, _ticks(low, high, LOW, float))
    step = WIDTH / len(drawn)
    marks = [
        f'<use href="#m-dot" class="mark" x="{step * (place + 0.5) / 10:.2f}%" y="{scale.y(value):.1f}"/>'
        for place, value in enumerate(drawn)
    ]
    y = scale.y(middle)
    lines = [_grid(scale), f'<path class="level" d="M0 {y:.1f}H1000"/>']
    names = {"median": "median", "steady": "median without the first", "sum": "sum"}
    said = f"{len(values)} samples, {min(values):.4g} to {max(values):.4g}, {names[rule]} {middle:.4g}"
    return _svg(LOW, said, lines, [*marks, *_tick_texts(scale)])


def small(values: Sequence[float], low: float, high: float) -> SafeString:
    """Return the compilations of a point as marks on one axis of all points."""
    length = (high - low) or 1.0
    marks = "".join(
        f'<circle cx="{4 + 92 * (value - low) / length:.1f}%" cy="7" r="2.2"/>' for value in values
    )
    said = ", ".join(f"{value:.4g}" for value in values[:20])
    return mark_safe(  # noqa: S308 — numbers  # nosec B308, B703
        f'<svg class="marks" width="72" height="14" role="img" aria-label="{said}">'
        f"<title>{said}</title>{marks}</svg>"
    )


def _scale(row: Row, look: Look, height: int) -> Scale:
    spots = [*row.spots.values(), *(row.beside.spots.values() if row.beside else ())]
    found = [value for spot in spots for _number, value in spot.compilations]
    found += [
        spot.value for over in row.overlays.values() for spot in over.values() if spot.value is not None
    ]
    level = row.level if row.level is not None else row.newest
    of = _transform(look, level, found)
    places = [of(value) for value in found] or [0.0, 1.0]
    low, high = min(places), max(places)
    if level is not None and of(level) is not None:
        air = _SPAN * abs(level) * (row.noise or 0.0)
        ends = [of(value) for value in (level - air, level, level + air) if value > 0 or look.scale != "log"]
        low, high = min(low, *ends), max(high, *ends)
    if row.target:
        place = of(row.target.value)
        if low - (high - low) <= place <= high + (high - low):
            low, high = min(low, place), max(high, place)
    low, high = _padded(low, high)
    if look.scale == "absolute" and min(places) >= 0:
        low = max(low, 0.0)
    ticks = _ticks(low, high, height, of, look=look, metric=row.metric) if found else []
    return Scale(low, high, height, of, ticks)


def _transform(look: Look, level: float | None, values: Sequence[float]) -> Callable[[float], float]:
    if look.scale == "log" and values and min(values) > 0:
        return lambda value: math.log10(max(value, 1e-300))
    if look.scale == "relative" and level:
        return lambda value: 100 * (value / level - 1)
    return float


def _padded(low: float, high: float) -> tuple[float, float]:
    air = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return low - air, high + air


def _pixel(place: float, low: float, high: float, height: int) -> float:
    share = (place - low) / (high - low)
    return height - 6 - (height - 12) * min(max(share, 0.0), 1.0)


def _ticks(
    low: float,
    high: float,
    height: int,
    of: Callable[[float], float],
    *,
    look: Look | None = None,
    metric: Metric | None = None,
) -> list[tuple[float, str]]:
    """Return 2 to 6 round ticks as pixels and text."""
    raw = (high - low) / (6 if height >= TALL else 4)
    power = 10.0 ** math.floor(math.log10(raw))
    step, half = next((power * size, size == 2.5) for size in (1, 2, 2.5, 5, 10) if power * size >= raw)
    digits = max(0, half - math.floor(math.log10(step) + 1e-9))
    first = math.ceil(low / step)
    places = [step * (first + number) for number in range(int(high / step - first + 1e-9) + 1)]
    scale = look.scale if look and of is not float else "absolute"

    def text_of(place: float) -> str:
        if scale == "log":
            return f"{10**place:.3g}"
        if scale == "relative":
            return f"{place:+.{digits}f} %" if abs(place) > step / 1e6 else "0 %"
        if metric and metric.unit == "B":
            return bytes_text(place).replace(".00 ", " ")
        return f"{place + 0.0:,.{digits}f}" if abs(place) < 1e6 else f"{place:.3g}"

    return [(_pixel(place, low, high, height), text_of(place).replace("-", "−")) for place in places]


def _lines(row: Row, canvas: Canvas, scale: Scale) -> Iterator[str]:
    yield _grid(scale)
    if row.level is not None:
        start = 0.0
        if row.level_start and canvas.slots and row.level_start > canvas.slots[0].time:
            place = max(slot_of_time(canvas.slots, row.level_start), 0)
            start = max(canvas.xs[place] - canvas.step / 2, 0)
        noise = abs(row.level) * (row.noise or 0.0)
        top, bottom = scale.y(row.level + noise), scale.y(row.level - noise)
        yield (
            f'<rect class="band" x="{start:.1f}" y="{top:.1f}" width="{WIDTH - start:.1f}"'
            f' height="{max(bottom - top, 1):.1f}"/>'
            f'<path class="level" d="M{start:.1f} {scale.y(row.level):.1f}H1000"/>'
        )
    if row.target and scale.holds(row.target.value):
        yield f'<path class="target" d="M0 {scale.y(row.target.value):.1f}H1000"/>'
    for event in canvas.events:
        yield f'<path class="event {event.kind}" d="M{event.x:.1f} 0V{scale.height}"/>'


def _ranges(row: Row, canvas: Canvas, scale: Scale) -> Iterator[str]:
    """Yield a thin line through the compilations of each point."""
    if canvas.look.marks == "each":
        found = [
            f"M{canvas.by_key[key]:.1f} {scale.y(max(values)):.1f}V{scale.y(min(values)):.1f}"
            for key, spot in row.spots.items()
            if len(values := [value for _number, value in spot.compilations]) > 1
        ]
        if found:
            yield f'<path class="stem" d="{"".join(found)}"/>'


def _grid(scale: Scale) -> str:
    return f'<path class="grid" d="{"".join(f"M0 {y:.1f}H1000" for y, _text in scale.ticks)}"/>'


def _marks(row: Row, canvas: Canvas, scale: Scale, *, shaped: bool = False, extra: str = "") -> list[str]:
    """Return one mark for each compilation beside its neighbours, and a cross for a run without a value."""
    since = row.regression.since if row.regression else None
    others = {slot.key for slot in canvas.slots if other_branch(slot.branch)}
    found = []
    for key, spot in row.spots.items():
        x = canvas.by_key[key]
        tone = "branch" if key in others else "moved" if since and key[0] >= since else ""
        if spot.value is None:
            kind = "cross" if spot.failed else "dot"  # a status without a number
            found.append(f'<use class="{kind}" href="#m-{kind}" x="{x / 10:.2f}%" y="{scale.height - 8}"/>')
            continue
        values = spot.compilations if canvas.look.marks == "each" else [(0, spot.value)]
        apart = canvas.step * 0.66 / len(values)
        for place, (key_number, value) in enumerate(values):
            number = key_number if key_number >= 0 else -1 - key_number  # unnumbered: the process's
            at = (x + apart * (place - (len(values) - 1) / 2)) / 10
            y = scale.y(value)
            shape = canvas.shapes.get((spot.run, number)) if shaped else None
            name = "m-dot" if shape is None else f"m-{shape}"
            look = f"mark {tone}" if shape is None else f"v{shape}"
            found.append(f'<use class="{look}{extra}" href="#{name}" x="{at:.2f}%" y="{y:.1f}"/>')
            if row.metric.name == "gpu_busy_ms" and (known := canvas.expected.get((spot.run, number))):
                found.append(f'<use class="expected" href="#m-tick" x="{at:.2f}%" y="{scale.y(known):.1f}"/>')
    return found


def _labels(row: Row, scale: Scale) -> Iterator[str]:
    yield from _tick_texts(scale)
    if row.newest is not None:
        y = scale.y(row.newest) + 4
        tone = " change" if row.regression else ""
        now = escape(quantity(row.newest, row.metric))
        yield f'<text class="now{tone}" x="100%" dx="6" y="{y:.1f}">{now}</text>'
    if row.target:
        inside, above = scale.holds(row.target.value), scale.of(row.target.value) > scale.high
        y = scale.y(row.target.value) - 3 if inside else 10 if above else scale.height - 2
        arrow = "" if inside else "↑ " if above else "↓ "
        text = f'x="0" dx="4" y="{max(y, 9):.1f}">{arrow}{escape(row.target.brief)}'
        yield f'<text class="tick start target" {text}</text>'


def _tick_texts(scale: Scale) -> list[str]:
    return [
        f'<text class="tick end" x="0" dx="-6" y="{y + 3.5:.1f}">{text}</text>' for y, text in scale.ticks
    ]


def _path(places: Places, scale: Scale) -> str:
    """Return a line through the places; one without a value interrupts it."""
    steps, pen = [], "M"
    for x, value in places:
        if x is None or value is None:
            pen = "M"
            continue
        steps.append(f"{pen}{x:.1f} {scale.y(value):.1f}")
        pen = "L"
    return "".join(steps)


def _svg(height: int, said: str, lines: Iterable[str], marks: Iterable[str]) -> SafeString:
    return mark_safe(  # noqa: S308 — numbers, and texts that are escaped above  # nosec B308, B703
        f'<svg class="plot" height="{height}" role="img" aria-label="{escape(said)}">'
        f'<svg viewBox="0 0 1000 {height}" preserveAspectRatio="none" width="100%" height="{height}">'
        f"{''.join(lines)}</svg>{''.join(marks)}</svg>"
    )
