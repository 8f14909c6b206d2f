"""The points of the sides: of each series its newest in the side's runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hud.models import NEVER_RAN, STATUS_NAMES
from hud.pages.compare.sides import Side
from hud.pages.sql import fetch
from runner.schema.statistics import median, severity


@dataclass(slots=True)
class Point:
    """The measurements of a series in one run and environment, over all its processes."""

    place: int  # of its side
    series_id: int
    experiment_id: int
    metric_id: int
    run_id: int
    environment_id: int
    raw: list[float | None]
    keys: list[int] | None  # the compilation of each value; None: each has its own
    statuses: list[int] | None  # None: all are ok
    code: str | None
    note: str | None
    values: list[float] = field(init=False)  # a number for each compilation that gave one
    value: float | None = field(init=False)
    status: str = field(init=False)  # of the worst process, but ok where another one gave a number

    def __post_init__(self) -> None:
        self.values = [value for value in self.raw if value is not None]
        if self.keys is not None:
            found: dict[int, list[float]] = {}
            for key, value in zip(self.keys, self.raw, strict=True):
                if value is not None:
                    found.setdefault(key, []).append(value)
            self.values = [median(values) for values in found.values()]
        self.value = median(self.values) if self.values else None
        self.status = "ok"
        if self.statuses is not None and not (self.values and 0 in self.statuses):
            names = (STATUS_NAMES.get(status, "failed") for status in self.statuses)
            self.status = max(names, key=severity)

    @property
    def good(self) -> bool:
        return self.status == "ok"

    @property
    def ran(self) -> bool:
        return self.value is not None or self.status not in NEVER_RAN


def read(sides: Sequence[Side], metrics: Collection[int]) -> list[Point]:
    """Return the points of these metrics on all sides: 1 statement."""
    wanted = [
        (place, run, -1 if side.ab_side is None else side.ab_side)
        for place, side in enumerate(sides)
        for run in side.runs
    ]
    return fetch(
        Point,
        """
        WITH newest AS (
            SELECT DISTINCT ON (w.place, m.series_id)
                w.place, w.ab_side, m.series_id, s.experiment_id, s.metric_id,
                m.run_id, m.environment_id, m.order_time
            FROM unnest(%(places)s::int[], %(runs)s::int[], %(ab_sides)s::int[])
                AS w(place, run_id, ab_side)
            JOIN hud_measurement m ON m.run_id = w.run_id AND (w.ab_side < 0 OR m.side = w.ab_side)
            JOIN hud_series s ON s.id = m.series_id
            WHERE s.metric_id = ANY(%(metrics)s)
            ORDER BY w.place, m.series_id, m.order_time DESC, m.run_id DESC, m.environment_id DESC
        )
        SELECT n.place, n.series_id, n.experiment_id, n.metric_id, n.run_id, n.environment_id,
            array_agg(m.value ORDER BY m.repeat) raw,
            CASE WHEN NOT bool_and(m.compilation IS NULL OR m.compilation = m.repeat)
                THEN array_agg(coalesce(m.compilation, -1 - m.repeat)::int ORDER BY m.repeat) END keys,
            CASE WHEN NOT bool_and(m.status = 0)
                THEN array_agg(m.status::int ORDER BY m.repeat) END statuses,
            max(m.code) code, max(m.note) note
        FROM newest n
        JOIN hud_measurement m ON m.run_id = n.run_id AND m.series_id = n.series_id
            AND m.environment_id = n.environment_id AND m.order_time = n.order_time
            AND (n.ab_side < 0 OR m.side = n.ab_side)
        GROUP BY n.place, n.series_id, n.experiment_id, n.metric_id, n.run_id, n.environment_id
        """,
        {
            "places": [place for place, _run, _side in wanted],
            "runs": [run for _place, run, _side in wanted],
            "ab_sides": [side for _place, _run, side in wanted],
            "metrics": list(metrics),
        },
    )
