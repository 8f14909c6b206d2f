"""The four trend charts: a line for each backend, night by night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hud.pages.compilers.table import TITLES, Entry, Table, colour, passing
from hud.points.nights import COMPILE, MEMORY, SPEEDUP, Night, Results, Values

_FEWEST = 3  # nights in a chart


def read(table: Table, results: Mapping[Night, Results], suite: str) -> dict[str, Any] | None:
    """Return the charts of a suite as `trends.js` draws them; None with too few nights."""
    entries = [entry for (name, _backend), entry in table.entries.items() if name == suite]
    if len(table.nights) < _FEWEST or not entries:
        return None
    base = table.nights.index(table.base) if table.base in table.nights else 0
    passed = {
        entry.backend: [_passed(results[night].of((suite, entry.backend))) for night in table.nights]
        for entry in entries
    }
    charts = [
        _chart(TITLES[name], "%", {entry.backend: _relative(entry, name, base) for entry in entries})
        for name in (SPEEDUP, COMPILE, MEMORY)
    ]
    charts.insert(1, _chart("Passing", "", passed))
    return {
        "x": [night.title for night in table.nights],
        "commits": [night.short_commit for night in table.nights],
        "base": base,
        "charts": charts,
    }


def _passed(values: Values) -> int | None:
    return sum(passing(values).values()) if values else None


def _chart(title: str, unit: str, lines: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    shown = [{"name": backend, "colour": colour(backend), "y": line} for backend, line in lines.items()]
    return {"title": title, "unit": unit, "lines": shown}


def _relative(entry: Entry, column: str, base: int) -> list[float | None]:
    """Return the change against the baseline in per cent, so that backends far apart share a scale."""
    trend = next(cell.trend for cell in entry.cells if cell.column == column)
    first = trend[base] or next((value for value in trend if value), None)
    return [None if value is None or not first else round((value / first - 1) * 100, 3) for value in trend]
