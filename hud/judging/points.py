"""Read the points of series as the judge takes them: one for each run and environment."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import groupby

from django.db import connection

from hud.judging.levels import Point
from hud.models import ACTIVE, NEVER_RAN, STATUS_NAMES
from hud.runs.branches import stored_names

ClassKey = tuple[int, str]  # a series, and a class of environments
_FEW_KERNELS = 8  # up to as many a variant comes again and says something; with more it is always new


def read_points(begin: dict[int, datetime]) -> Iterable[tuple[ClassKey, list[Point]]]:
    """Return the points of each series from its time on, by class and in order, without A/B runs, whose sides
    are compared with each other, without pinned ones and without points that never ran."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT w.id, e.class_key, m.run_id, m.environment_id, m.order_time, r.branch = ANY(%s),
                coalesce(e.facts->>'gpu_uuid', ''), m.status, m.value,
                CASE WHEN cardinality(c.kernels) <= %s THEN nullif(c.variant, '') END
            FROM unnest(%s::int[], %s::timestamptz[]) AS w(id, since)
            CROSS JOIN LATERAL (  -- OFFSET 0: else the planner may read the whole table
                SELECT * FROM hud_measurement WHERE series_id = w.id AND order_time >= w.since OFFSET 0
            ) m
            JOIN hud_series s ON s.id = w.id
            JOIN hud_environment e ON e.id = m.environment_id
            JOIN hud_run r ON r.id = m.run_id AND r.base_interpreter = ''
                AND r.state <> ALL(%s)  -- the judge is told of it when it is complete
            LEFT JOIN hud_runrequest q ON q.run_id = r.id
            LEFT JOIN hud_compilation c ON c.run_id = m.run_id AND c.experiment_id = s.experiment_id
                AND c.environment_id = m.environment_id AND c.repeat = m.repeat AND c.side = m.side
            WHERE q.caches IS DISTINCT FROM 'pinned'
            ORDER BY w.id, m.order_time, m.run_id, m.environment_id, m.repeat, m.side
            """,
            [stored_names(), _FEW_KERNELS, list(begin), list(begin.values()), list(ACTIVE)],
        )
        rows = cursor.fetchall()
    found: dict[ClassKey, list[Point]] = {}
    for (series_id, class_key, *about), group in groupby(rows, lambda row: row[:7]):
        run_id, environment_id, time, is_baseline, card = about
        outcomes = [row[7:] for row in group]
        values = tuple(value for _status, value, _variant in outcomes if value is not None)
        groups = tuple(variant for _status, value, variant in outcomes if value is not None)
        statuses = {STATUS_NAMES.get(status, "failed") for status, _value, _variant in outcomes}
        if values or not statuses <= NEVER_RAN:
            # a process that failed does not hide the values of the others
            point = Point(
                run_id,
                environment_id,
                time,
                values,
                groups,
                card=card,
                good=statuses == {"ok"},
                is_baseline=is_baseline,
            )
            found.setdefault((series_id, class_key), []).append(point)
    return found.items()
