"""The lines through all charts of a page: change points, environment steps, notes and missing days."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hud.models import Annotation
from hud.pages.charts.drawing import Canvas, ChartEvent
from hud.pages.charts.multiples import Multiples, Spot, slot_of_time
from hud.states.regressions import RegressionState
from runner.schema.statistics import median

_MOST_STEPS = 12
_LEAST_DAYS = 4  # between nights, below which none is called missing


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


def _gaps(slots: Sequence[Spot]) -> list[tuple[int, int]]:
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
