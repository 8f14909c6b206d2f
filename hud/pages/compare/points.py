"""The points of a side: of each series its newest in the side's runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hud.models import NEVER_RAN, STATUS_CODES, STATUS_NAMES
from hud.pages.compare.sides import Side
from hud.sql import fetch, int_array

# A side of an A/B run was not judged: its noise is that of the series' newest point.
_COLUMNS = """p.series_id, experiment_id, metric_id, run_id, environment_id, value, status AS status_code,
    "values", variants, noise, level_points, code, note"""
_RAN = "metric_id = ANY(%(metrics)s) AND (value IS NOT NULL OR status <> ALL(%(never_ran)s))"
_NEWEST_FIRST = "order_time DESC, run_id DESC, environment_id DESC"
_OF_RUNS = f"""
    SELECT DISTINCT ON (p.series_id) {_COLUMNS} FROM hud_point p JOIN hud_series s ON s.id = p.series_id
    WHERE run_id = ANY(%(runs)s::int[]) AND {_RAN} ORDER BY p.series_id, {_NEWEST_FIRST}
"""  # noqa: S608 — constants, as below  # nosec B608
_OF_AB_SIDE = f"""
    SELECT {_COLUMNS} FROM hud_sidepoint p JOIN hud_series s ON s.id = p.series_id
    LEFT JOIN LATERAL (
        SELECT noise, level_points FROM hud_point WHERE series_id = s.id AND noise IS NOT NULL
        ORDER BY order_time DESC LIMIT 1
    ) judged ON true
    WHERE run_id = ANY(%(runs)s::int[]) AND side = %(ab_side)s AND {_RAN}
"""  # noqa: S608  # nosec B608
_NEWEST = f"""
    SELECT {_COLUMNS} FROM hud_series s CROSS JOIN LATERAL (
        SELECT * FROM hud_point
        WHERE series_id = s.id AND order_time >= %(start)s AND run_id = ANY(%(runs)s::int[]) AND {_RAN}
        ORDER BY {_NEWEST_FIRST} LIMIT 1
    ) p WHERE s.stream_id = %(stream)s
"""  # noqa: S608  # nosec B608


@dataclass(slots=True)
class ComparedPoint:
    """The columns of a point that are compared, at a fifth of the cost of the model."""

    series_id: int
    experiment_id: int
    metric_id: int
    run_id: int
    environment_id: int
    value: float | None
    status_code: int
    values: list[float | None] | None
    variants: list[str | None] | None
    noise: float | None
    level_points: int | None
    code: str | None
    note: str | None

    @property
    def status(self) -> str:
        return STATUS_NAMES[self.status_code]

    @property
    def good(self) -> bool:
        return self.status_code == 0

    @property
    def numbers(self) -> list[float]:
        """Return the values of the compilations that gave one."""
        return [number for number in (self.values or (self.value,)) if number is not None]


def read(side: Side, metrics: Collection[int]) -> list[ComparedPoint]:
    """Return the points of these metrics: 1 statement."""
    if side.ab_side is not None:
        statement = _OF_AB_SIDE
    else:
        statement = _OF_RUNS if side.kind in {"run", "commit", "night"} else _NEWEST
    return fetch(
        ComparedPoint,
        statement,
        {
            "runs": int_array(side.runs),
            "metrics": list(metrics),
            "never_ran": [STATUS_CODES[name] for name in NEVER_RAN],
            "ab_side": side.ab_side,
            "start": side.start,
            "stream": side.newest.stream_id,
        },
    )
