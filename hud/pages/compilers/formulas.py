"""The numbers of the table by the formulas of PyTorch's HUD."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from hud.judging.aggregates import GeometricMean, HudRow, PassRate, hud_geometric_mean, hud_pass_rate
from hud.pages.compilers.table import Table, numbers, passing
from hud.points.nights import COMPILE, MEMORY, PREFERRED, SPEEDUP, Night, Results, Values


def by_hud_formulas(table: Table, by_night: Mapping[Night, Results]) -> None:
    """Replace the numbers by those of PyTorch's HUD: each side over its own rows, with no interval."""
    for block, entry in table.entries.items():
        base = by_night[table.base].of(block) if table.base else {}
        rows, old = _hud_rows(by_night[table.head].of(block)), _hud_rows(base)
        rate = hud_pass_rate(rows) or 0.0
        entry.passes = PassRate(round(rate * len(rows)), len(rows), ())
        entry.new, entry.known = (), len(rows) - entry.passes.passed
        means: dict[str, Callable[[Values, Sequence[HudRow]], float | None]] = {
            SPEEDUP: lambda _values, found: hud_geometric_mean(found) or None,
            COMPILE: lambda values, _found: _mean(values, PREFERRED[COMPILE]),
            MEMORY: lambda values, _found: _mean(values, PREFERRED[MEMORY]),
        }
        for cell in entry.cells:
            cell.head = means[cell.column](by_night[table.head].of(block), rows)
            cell.base = means[cell.column](base, old)
            ratio = cell.head / cell.base if cell.head and cell.base else None
            cell.mean = GeometricMean(cell.base, cell.head, ratio)
            cell.tone = ""


def _hud_rows(values: Values) -> list[HudRow]:
    passed = passing(values)
    speedups = next((values[name] for name in reversed(PREFERRED[SPEEDUP]) if values.get(name)), {})
    return [
        HudRow("pass" if ok else "fail", speedups.get(int(case)) or 0.0)
        for case, ok in sorted(passed.items())
    ]


def _mean(values: Values, metrics: Collection[str]) -> float | None:
    found = next((numbers(values[name]) for name in metrics if values.get(name)), {})
    return math.fsum(found.values()) / len(found) if found else None
