"""Points of a series, and levels that they make."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from hud.judging.levels import (
    Level,
    SeriesPoint,
    advance,
)
from hud.judging.verdict import Rule, Verdict

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EXACT = Rule(kind="deterministic", relative_floor=0.0)
STATUS = Rule(kind="status")


def point(number: int, *values: float, card: str = "", good: bool = True, **other: object) -> SeriesPoint:
    return SeriesPoint(
        run_id=number,
        environment_id=1,
        time=BEGIN + timedelta(days=number),
        values=values,
        card=card,
        good=good,
        **other,  # type: ignore[arg-type]
    )


def quiet(count: int, *, card: str = "", noise: float = 0.003, seed: int = 1) -> Level:
    """Return a level of so many points around 10."""
    level, chance = Level(), random.Random(seed)
    for number in range(count):
        advance(level, point(number, 10 + chance.gauss(0, 10 * noise), card=card), Rule())
    return level


def follow(level: Level, *values: float, card: str = "", rule: Rule | None = None) -> list[Verdict]:
    """Judge further points with these values, one a day."""
    start = 1000 + level.taken + len(level.values) + len(level.moved)
    points = [point(start + number, value, card=card) for number, value in enumerate(values)]
    return [advance(level, each, rule or Rule()) for each in points]
