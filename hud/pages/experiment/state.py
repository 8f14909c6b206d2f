"""The state of an experiment in a sentence, and the lines and details of its charts."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from hud.judging.regressions.states import RegressionState
from hud.models import Annotation
from hud.pages.experiment.drawing import SHAPES, Canvas, ChartEvent, Legend
from hud.pages.experiment.multiples import Chart, Key, Multiples, Slot, slot_of_time
from hud.pages.experiment.query import ExperimentPage
from hud.runs.branches import other_branch
from hud.tables.formatting import better, unit
from runner.schema.statistics import median

_MOST_STEPS = 12
_LEAST_DAYS = 4  # between nights, below which none is called missing


def canvas_of(page: ExperimentPage) -> Canvas:
    """Return the settings of the page's charts: shapes of variants, expected times, and lines."""
    shapes, legend = _shapes_of(page)
    expected = {  # of the choices of each compilation in history
        (mark.run, mark.number): mark.busy_us / mark.same_choice / 1e3
        for mark in page.compilations.marks
        if mark.busy_us and mark.same_choice
    }
    canvas = Canvas(page.charts.slots, page.choice, shapes=shapes, legend=legend, expected=expected)
    canvas.events = lines_of(page.charts, page.notes, canvas)
    return canvas


def _shapes_of(page: ExperimentPage) -> tuple[dict[str, int], list[Legend]]:
    """Return the shape of each variant of a few kernels, the most frequent first. Reruns do not count."""
    found = page.compilations
    if not found.few_kernels:
        return {}, []
    marks = [mark for mark in found.marks if not mark.rerun]
    counts = Counter(mark.variant for mark in marks)
    places = {variant: min(place, SHAPES - 1) for place, (variant, _n) in enumerate(counts.most_common())}
    legend = []
    for place in range(min(len(counts), SHAPES)):
        own = [mark for mark in marks if places[mark.variant] == place]
        several = len({mark.variant for mark in own}) > 1
        text = "other choices" if several else own[0].config or own[0].variant[:7]
        values = [mark.value for mark in own if mark.value is not None]
        legend.append(Legend(place, text, len(own), median(values) if values else None))
    return places, legend


def lines_of(charts: Multiples, notes: Sequence[Annotation], canvas: Canvas) -> list[ChartEvent]:
    """Return the change points, environment steps and notes that are within the charts."""
    slots = charts.slots
    lines: dict[tuple[str, float], ChartEvent] = {}

    def put(kind: Any, place: int, text: str) -> None:
        x = canvas.xs[place] - (canvas.step / 2 if kind != "note" else 0)
        lines.setdefault((kind, x), ChartEvent(kind, max(x, 0.0), text))

    for one in charts.regressions:
        place = slot_of_time(slots, one.since)
        if one.state != RegressionState.DISMISSED and place >= 0 and slots[place].time == one.since:
            put("change", place, f"{one.since:%-d %b}, {slots[place].commit[:7]}".strip(", "))
    start = charts.rows[0].level_start if charts.rows else None
    if start and start > slots[0].time:
        put("level", slot_of_time(slots, start), f"{start:%-d %b}, new level")
    steps = [place for place, slot in enumerate(slots) if slot.step]
    for place in steps[-_MOST_STEPS:]:
        put("step", place, slots[place].changed[0] if slots[place].changed else "environment")
    for place, days in _gaps(slots)[-_MOST_STEPS:]:
        put("gap", place, f"{days} day{'s' if days > 1 else ''} without a result")
    for note in notes:
        where = place_of(note, charts)
        if where is not None:
            put("note", where, note.text)
    return list(lines.values())


def _gaps(slots: Sequence[Slot]) -> list[tuple[int, int]]:
    """Return the places before which days are missing, and how many, where most days have a result."""
    first = {slot.time.date(): place for place, slot in reversed(list(enumerate(slots)))}
    days = sorted(first)
    apart = [(later - day).days for day, later in pairwise(days)]
    if len(apart) < _LEAST_DAYS or median(apart) > 1:
        return []
    return [(first[day], gap - 1) for day, gap in zip(days[1:], apart, strict=True) if gap > 1]


def place_of(note: Annotation, charts: Multiples) -> int | None:
    """Return the run at which a note stands: its commit's, else the first one from its time on."""
    slots = charts.slots
    if note.commit:
        return next((i for i, slot in enumerate(slots) if slot.commit.startswith(note.commit)), None)
    if note.at is None or not slots or note.at < slots[0].time:
        return None
    return min(bisect_left([slot.time for slot in slots], note.at), len(slots) - 1)


def details_of(page: ExperimentPage, canvas: Canvas) -> dict[str, Any]:
    """Return what the script shows of a chosen point, as JSON. Points and values are lists, and words are
    numbers: with names they would be most of the page."""
    charts = page.charts
    places = {slot.key: place for place, slot in enumerate(charts.slots)}
    known = {mark.run for mark in page.compilations.marks}
    words: dict[str, int] = {}  # verdicts and codes, by their place
    return {
        "experiment": page.experiment.pk,
        "stream": page.stream.name,
        "points": [
            [
                slot.run,
                round(x / 10, 3),
                slot.time,
                slot.commit,
                other_branch(slot.branch),
                slot.host,
                slot.changed[:6],
                slot.run in known,
                slot.rerun,
            ]
            for slot, x in zip(charts.slots, canvas.xs, strict=True)
        ],
        "rows": [
            {
                "title": row.metric.title,
                "unit": row.metric.unit if row.metric.unit in ("B", "ratio") else unit(row.metric),
                "digits": row.metric.precision,
                "better": better(row.metric),
                "values": _values_of(row, places, words),
            }
            for row in charts.rows
        ],
        "words": list(words),
    }


def _values_of(row: Chart, places: Mapping[Key, int], words: dict[str, int]) -> list[list[Any]]:
    """Return of each point place, value, compilations, word, level, noise and change; of several compilations
    both extremes too. They have 7 digits of the largest."""
    largest = max((abs(spot.value) for spot in row.spots.values() if spot.value), default=1.0)
    digits = 6 - math.floor(math.log10(largest))
    found = []
    for key, spot in row.spots.items():
        value, level = (None if each is None else round(each, digits) for each in (spot.value, spot.level))
        noise, change = (None if each is None else round(each, 5) for each in (spot.noise, spot.change))
        word = words.setdefault(spot.verdict or spot.code, len(words))
        numbers = [places[key], value, len(spot.compilations), word, level, noise, change]
        if len(spot.compilations) > 1:
            ends = [value for _number, value in spot.compilations]
            numbers += round(min(ends), digits), round(max(ends), digits)
        found.append(numbers)
    return found
