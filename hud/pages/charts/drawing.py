"""Charts of the experiment page as SVG, drawn here so that they need no script, print, and take the page's
colours. x is in per cent and y in pixels, so that one drawing fits every width and texts keep their size.
Lines are in a nested drawing of 1000 units that is stretched."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Literal

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from hud.models import Metric
from hud.pages.backends_table import colour
from hud.pages.charts.choice import Choice
from hud.pages.charts.multiples import Chart, Key, Spot, slot_of_time
from hud.pages.charts.scale import LOW, TALL, Scale, padded, scale_of
from hud.tables.formatting import number as number_text
from hud.tables.formatting import quantity
from runner.schema.statistics import ValueRule, value_of

WIDTH = 1000.0
STRIP, FOOT = 14, 34
SHAPES = 8  # of the most frequent variants; further ones share the last
_MOST_TICKS = 6
_LABEL = 26  # characters beside an event
_EDGE = 11  # letters of a label at the right edge
_APART = 240.0  # between the labels of two events
_SAMPLES = 400
_LINE = 13  # pixels between two texts at the right edge
_DOT, _TICK_UP = "h.1", "v1.6"  # strokes of a path: a dot by its round ends; a tick, as wide as the stroke


@dataclass(frozen=True)
class ChartEvent:
    """A line through all charts."""

    kind: Literal["change", "level", "step", "note", "gap"]
    x: float
    text: str


@dataclass(frozen=True)
class Legend:
    """An entry of the chart's legend: a shape, and the autotuner's choice that it marks."""

    shape: int
    text: str
    n: int
    value: float | None  # the shown metric's median with it


@dataclass
class Canvas:
    """Settings that all charts share. `shapes` has the place in the legend of each known variant; `expected`
    the busy time in ms that a compilation's choices have in history, by run and number."""

    slots: Sequence[Spot]
    choice: Choice
    events: list[ChartEvent] = field(default_factory=list)
    shapes: Mapping[str, int] = field(default_factory=dict)
    legend: Sequence[Legend] = ()
    expected: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.slots)
        self.step = WIDTH / max(count, 1)
        self.xs = [self.step * (index + 0.5) for index in range(count)]
        if self.choice.axis == "date" and count > 1:
            times = [slot.time.timestamp() for slot in self.slots]
            length = (times[-1] - times[0]) or 1.0
            self.xs = [20 + 960 * (time - times[0]) / length for time in times]
            self.step = min(self.step, 12.0)
        self.by_key = {slot.key: x for slot, x in zip(self.slots, self.xs, strict=True)}
        self.hollow = {
            slot.key: "rerun" if slot.rerun else "branch" for slot in self.slots if not slot.counts
        }

    def x_of(self, key: Key) -> float | None:
        """Return the place of a point; one of another experiment stands at the run before it."""
        if key in self.by_key:
            return self.by_key[key]
        index = slot_of_time(self.slots, key[0])
        return self.xs[index] if index >= 0 else None


def chart(row: Chart, canvas: Canvas, *, tall: bool) -> SafeString:
    """Return a metric's chart: values with their level, noise, guides, and the events of all charts.

    The first one shows the choices of a kernel by shape, and at its right edge how often each came.
    """
    scale = scale_of(row, canvas.choice.scale, TALL if tall else LOW)
    shaped = tall and bool(canvas.shapes) and canvas.choice.marks == "each"
    if shaped:  # the best choice stands at the edge
        row = replace(row, best=None)
    lines, marks = list(_lines(row, canvas, scale)), []
    for number, (backend, spots) in enumerate(row.overlays.items()):
        tone = f"o{number} s{colour(backend)}"
        steps, pen = [], "M"  # a missing value interrupts the line
        for key, spot in spots.items():
            x = canvas.x_of(key)
            if x is None or spot.value is None:
                pen = "M"
                continue
            y = f"{scale.y(spot.value):.1f}"
            steps.append(f"{pen}{x:.1f} {y}")
            marks.append(f'<use class="over {tone}" href="#m-dot" x="{x / 10:.2f}%" y="{y}"/>')
            pen = "L"
        lines.append(f'<path class="overlay {tone}" d="{"".join(steps)}"/>')
    if row.beside:
        lines += _dots(row.beside, canvas, scale, tone="beside")
    if shaped:
        marks += _shapes(row, canvas, scale)
    else:
        lines += _dots(row, canvas, scale)
    marks += _missing(row, canvas, scale)
    label = f"{row.metric.title}, {len(row.spots)} points"
    if row.point.value is not None:
        label += f", newest {quantity(row.point.value, row.metric)}"
    if row.point.level is not None:
        label += f", accepted level {quantity(row.point.level, row.metric)}"
    texts = [*_tick_texts(scale), *_edge(row, canvas, scale, shaped=shaped)]
    return _svg(scale.height, label, lines, [*_guide_texts(row, scale), *marks, *texts])


def strip(row: Chart, canvas: Canvas) -> SafeString:
    """Return a cell for each run: dark where its result is good."""
    cells: dict[str, list[str]] = {"good": [], "some": [], "bad": []}
    width = max(canvas.step * 0.8, 2.0)
    numbers = [spot.value for spot in row.spots.values() if spot.value is not None]
    usual = min(numbers, default=0.0) if row.metric.kind != "status" else math.inf
    for key, spot in row.spots.items():
        x = canvas.by_key[key] - width / 2
        tone = "bad" if spot.failed or (spot.value or 0.0) > usual else "some" if spot.value else "good"
        cells[tone].append(f"M{x:.1f} 1h{width:.1f}v{STRIP - 2}h-{width:.1f}z")
    drawn = [f'<path class="{tone}" d="{"".join(found)}"/>' for tone, found in cells.items() if found]
    now = ""
    if row.point.value is not None:
        now = f'<text class="tick start" x="100%" dx="6" y="11">{row.point.value:g}</text>'
    label = f"{row.metric.title}: {len(row.spots)} runs, {len(cells['bad'])} worse"
    return _svg(STRIP, label, drawn, [now])


def hosts(canvas: Canvas) -> SafeString:
    """Return a band for each stretch of runs on one host."""
    cells, texts = [], []
    hosts_at = zip((slot.host for slot in canvas.slots), canvas.xs, strict=True)
    for number, (host, stretch) in enumerate(groupby(hosts_at, key=itemgetter(0))):
        xs = [x for _host, x in stretch]
        x, length = xs[0] - canvas.step / 2, xs[-1] - xs[0] + canvas.step
        odd = " odd" if number % 2 else ""
        cells.append(
            f'<rect class="host{odd}" x="{x:.1f}" y="1" width="{max(length, 2):.1f}" height="{STRIP - 2}"/>'
        )
        name, most = host or "unknown", int(length / 34)  # characters, also on a phone
        shown = "" if most < 3 else name if len(name) <= most else f"{name[: most - 1]}…"
        texts.append(
            f'<text class="tick start" x="{x / 10:.2f}%" dx="4" y="10.5">'
            f"<title>{escape(name)}</title>{escape(shown)}</text>"
        )
    return _svg(STRIP, "Host of each run", cells, texts)


def axis(canvas: Canvas) -> SafeString:
    """Return the dates with the commits of some runs."""
    every = -(-len(canvas.slots) // _MOST_TICKS) or 1
    texts: list[str] = []
    last = -WIDTH
    for index in range(0, len(canvas.slots), every):
        slot, x = canvas.slots[index], canvas.xs[index]
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
    marks: list[str] = []
    texts: list[str] = []  # over the marks
    named: list[float] = []
    icons = {"change": "worse", "level": "minus", "step": "diamond", "note": "note", "gap": "ban"}
    for event in sorted(canvas.events, key=lambda event: event.kind != "change"):
        near = event.kind == "gap" or any(abs(event.x - x) < _APART for x in named)
        words = event.text if len(event.text) <= _LABEL else event.text[: _LABEL - 1] + "…"
        x, title = f'x="{event.x / 10:.2f}%"', f"<title>{escape(event.text)}</title>"
        size = 'y="3" width="10" height="10" transform="translate(-5)"'
        marks.append(f'<use class="mark {event.kind}" href="#i-{icons[event.kind]}" {x} {size}>{title}</use>')
        if not near:
            named.append(event.x)
            anchor, dx = ("end", -8) if event.x > 880 else ("start", 8)
            texts.append(
                f'<text class="tick {anchor} {event.kind}" {x} dx="{dx}" y="12">{title}{escape(words)}</text>'
            )
    return _svg(16, "Changes, environment steps and notes", [], [*marks, *texts])


def samples(values: Sequence[float], metric: Metric, rule: ValueRule) -> SafeString:
    """Return all samples of one measurement in measured order, with the resulting value."""
    every = -(-len(values) // _SAMPLES)
    drawn = values[::every]
    middle = value_of(values, rule)
    scale = Scale(*padded(min(*drawn, middle), max(*drawn, middle)), LOW)
    step, y = WIDTH / len(drawn), scale.y(middle)
    dots = "".join(
        f"M{step * (index + 0.5):.1f} {scale.y(value):.1f}{_DOT}" for index, value in enumerate(drawn)
    )
    lines = [_grid(scale), f'<path class="level" d="M0 {y:.1f}H1000"/><path class="dots" d="{dots}"/>']
    names = {"median": "median", "steady": "median without the first", "sum": "sum"}
    label = f"{len(values)} samples, {min(values):.4g} to {max(values):.4g}, {names[rule]} {middle:.4g}"
    return _svg(LOW, label, lines, _tick_texts(scale))


def small(values: Sequence[float], low: float, high: float) -> SafeString:
    """Return the compilations of a point as marks on one axis of all points."""
    length = (high - low) or 1.0
    marks = "".join(
        f'<circle cx="{4 + 92 * (value - low) / length:.1f}%" cy="7" r="2.2"/>' for value in values
    )
    label = ", ".join(f"{value:.4g}" for value in values[:20])
    return mark_safe(  # noqa: S308 — numbers  # nosec B308, B703
        f'<svg class="marks" width="72" height="14" role="img" aria-label="{label}">'
        f"<title>{label}</title>{marks}</svg>"
    )


def _lines(row: Chart, canvas: Canvas, scale: Scale) -> Iterator[str]:
    yield _grid(scale)
    if row.point.level is not None:
        start = 0.0
        if row.level_start and canvas.slots and row.level_start > canvas.slots[0].time:
            start = max(canvas.xs[slot_of_time(canvas.slots, row.level_start)] - canvas.step / 2, 0)
        noise = abs(row.point.level) * (row.point.noise or 0.0)
        top, bottom = scale.y(row.point.level + noise), scale.y(row.point.level - noise)
        yield (
            f'<rect class="band" x="{start:.1f}" y="{top:.1f}" width="{WIDTH - start:.1f}"'
            f' height="{max(bottom - top, 1):.1f}"/>'
            f'<path class="level" d="M{start:.1f} {scale.y(row.point.level):.1f}H1000"/>'
        )
    for kind, value in row.guides:
        if scale.holds(value):
            yield f'<path class="{kind}" d="M0 {scale.y(value):.1f}H1000"/>'
    for event in canvas.events:
        yield f'<path class="event {event.kind}" d="M{event.x:.1f} 0V{scale.height}"/>'
    stems = [  # through the compilations of each point
        f"M{canvas.by_key[key]:.1f} {scale.y(max(values)):.1f}V{scale.y(min(values)):.1f}"
        for key, spot in row.spots.items()
        if canvas.choice.marks == "each"
        and len(values := [value for _number, value in spot.compilations]) > 1
    ]
    if stems:
        yield f'<path class="stem" d="{"".join(stems)}"/>'


def _grid(scale: Scale) -> str:
    return f'<path class="grid" d="{"".join(f"M0 {y:.1f}H1000" for y, _text in scale.ticks)}"/>'


def _dots(row: Chart, canvas: Canvas, scale: Scale, *, tone: str = "") -> Iterator[str]:
    """Yield a dot for each compilation beside its neighbours, by what it tells: a path, since hundreds of
    elements cost more than all else of a page. Those of reruns, other branches and a second metric are
    hollow, of those that may not decide pale."""
    since = row.regression.since if row.regression else None
    kinds = ("", "moved", "branch", "rerun", "beside", "expected", "pale")
    paths: dict[str, list[str]] = {kind: [] for kind in kinds}
    expected = canvas.expected if row.metric.name == "gpu_busy_ms" else {}
    for key, spot, number, x, value in _places(row, canvas):
        moved = "moved" if since and key[0] >= since else ""
        own = tone or ("pale" if spot.quality else canvas.hollow.get(key) or moved)
        paths[own].append(f"M{x:.1f} {scale.y(value):.1f}{_DOT}")
        if known := expected.get((key[1], number)):
            paths["expected"].append(f"M{x:.1f} {scale.y(known) - 0.8:.1f}{_TICK_UP}")
    for name, dots in paths.items():
        if dots:
            drawn = "".join(dots)
            look = name if name == "expected" else f"dots {name}".strip()
            yield f'<path class="{look}" d="{drawn}"/>'
            if name in ("branch", "rerun", "beside"):
                yield f'<path class="dots hole" d="{drawn}"/>'


def _shapes(row: Chart, canvas: Canvas, scale: Scale) -> Iterator[str]:
    """Yield a mark for each compilation, with the shape and the colour of the choice it drew."""
    for _key, spot, number, x, value in _places(row, canvas):
        variant = spot.variants[number] if spot.variants else None
        shape = canvas.shapes.get(variant or "")
        look = 'mark" href="#m-dot' if shape is None else f'v{shape}" href="#m-{shape}'
        if spot.rerun:
            look = 'rerun" href="#m-dot'
        look = f"pale {look}" if spot.quality else look
        yield f'<use class="{look}" x="{x / 10:.2f}%" y="{scale.y(value):.1f}"/>'


def _places(row: Chart, canvas: Canvas) -> Iterator[tuple[Key, Spot, int, float, float]]:
    """Yield of each mark its point, the number of its compilation, x, and its value."""
    each = canvas.choice.marks == "each"
    for key, spot in row.spots.items():
        if spot.value is None:
            continue
        values = spot.compilations if each else [(0, spot.value)]
        apart = canvas.step * 0.66 / len(values)
        x = canvas.by_key[key] - apart * (len(values) - 1) / 2
        for number, value in values:
            yield key, spot, number, x, value
            x += apart


def _missing(row: Chart, canvas: Canvas, scale: Scale) -> Iterator[str]:
    """Yield a cross for each run that failed, and a dot for a status without a number."""
    for key, spot in row.spots.items():
        if spot.value is None:
            kind, x = "cross" if spot.failed else "dot", canvas.by_key[key] / 10
            yield f'<use class="{kind}" href="#m-{kind}" x="{x:.2f}%" y="{scale.height - 8}"/>'


def _guide_texts(row: Chart, scale: Scale) -> Iterator[str]:
    """Yield the names of target and ceiling, with an arrow where they are off the scale."""
    off = {"↑ ": 10.0, "↓ ": scale.height - 2.0}
    for kind, value in row.guides:
        if kind == "best":
            continue
        text = f"ceiling {quantity(value, row.metric)}"
        if kind == "target" and row.target:
            text = row.target.brief
        arrow, y = "", scale.y(value) - 3
        if not scale.holds(value):
            arrow = "↑ " if scale.of(value) > scale.high else "↓ "
            y = off[arrow]
            off[arrow] += 12 if arrow == "↑ " else -12
        yield f'<text class="tick start {kind}" x="0" dx="4" y="{max(y, 9):.1f}">{arrow}{escape(text)}</text>'


def _edge(row: Chart, canvas: Canvas, scale: Scale, *, shaped: bool) -> Iterator[str]:
    """Yield what stands at the right edge, one below the other: the newest value, the best one, and how often
    each choice came."""
    labels: list[tuple[float, str, str]] = []  # y, before the text, text
    if row.point.value is not None:
        tone = " change" if row.regression else ""
        now = f'<text class="now{tone}" x="6"'
        text = quantity(row.point.value, row.metric)
        if len(text) > _EDGE:  # its unit stands left
            text = number_text(row.point.value, row.metric)
        labels.append((scale.y(row.point.value), now, text))
    best = dict(row.guides).get("best")
    if best is not None and number_text(best, row.metric) != number_text(row.point.value, row.metric):
        labels.append((scale.y(best), '<text class="best" x="6"', f"best {number_text(best, row.metric)}"))
    total = sum(variant.n for variant in canvas.legend)
    for variant in canvas.legend if shaped else ():
        if variant.value is not None and scale.holds(variant.value):
            mark = f'<use x="12" y="-4" class="v{variant.shape}" href="#m-{variant.shape}"/><text x="20"'
            labels.append((scale.y(variant.value), mark, f"{variant.n} of {total}"))
    labels.sort(key=lambda item: item[0])
    ys: list[float] = []
    for index, (y, _mark, _text) in enumerate(labels):
        highest, lowest = 8 + _LINE * index, scale.height - 4 - _LINE * (len(labels) - 1 - index)
        ys.append(max(min(y, lowest), ys[-1] + _LINE if ys else highest))
    drawn = "".join(
        f'<g transform="translate(0 {y + 4:.1f})">{mark}>{escape(text)}</text></g>'
        for y, (_wanted, mark, text) in zip(ys, labels, strict=True)
    )
    if drawn:
        yield f'<svg class="edge" x="100%">{drawn}</svg>'


def _tick_texts(scale: Scale) -> list[str]:
    return [
        f'<text class="tick end" x="0" dx="-6" y="{y + 3.5:.1f}">{text}</text>' for y, text in scale.ticks
    ]


def _svg(height: int, label: str, lines: Iterable[str], marks: Iterable[str]) -> SafeString:
    return mark_safe(  # noqa: S308 — numbers, and texts that are escaped above  # nosec B308, B703
        f'<svg class="plot" height="{height}" role="img" aria-label="{escape(label)}">'
        f'<svg viewBox="0 0 1000 {height}" preserveAspectRatio="none" width="100%" height="{height}">'
        f"{''.join(lines)}</svg>{''.join(marks)}</svg>"
    )
