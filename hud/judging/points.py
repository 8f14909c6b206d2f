"""Read the points of series as the judge takes them."""

from collections.abc import Iterable
from datetime import datetime

from hud.judging.levels import SeriesPoint
from hud.models import ACTIVE, NEVER_RAN, STATUS_CODES
from hud.runs.branches import stored_names
from hud.sql import fetch_tuples

ClassKey = tuple[int, str]  # a series, and a class of environments


def read_points(begin: dict[int, datetime]) -> Iterable[tuple[ClassKey, list[SeriesPoint]]]:
    """Return the points of each series from its time on, by class and in order; not what never ran."""
    rows = fetch_tuples(
        """
        SELECT w.id, e.class_key, p.value, p.values, p.variants, p.run_id, p.environment_id, p.order_time,
            coalesce(e.facts->>'gpu_uuid', ''), p.status = %s,
            p.branch = ANY(%s) AND NOT p.rerun AND p.quality IS NULL, p.rerun, coalesce(p.quality, ''),
            concat_ws('/', r.host_name, e.facts->>'gpu_uuid', r.interpreter), p.noise, p.spread
        FROM unnest(%s::int[], %s::timestamptz[]) AS w(id, since)
        CROSS JOIN LATERAL (  -- OFFSET 0: else the planner may read the whole table
            SELECT * FROM hud_point WHERE series_id = w.id AND order_time >= w.since OFFSET 0
        ) p
        JOIN hud_environment e ON e.id = p.environment_id
        JOIN hud_run r ON r.id = p.run_id
            AND r.state <> ALL(%s)  -- the judge is told of it when it is complete
        WHERE p.value IS NOT NULL OR p.status <> ALL(%s)
        ORDER BY w.id, p.order_time, p.run_id, p.environment_id
        """,
        [
            STATUS_CODES["ok"],
            stored_names(),
            list(begin),
            list(begin.values()),
            list(ACTIVE),
            [STATUS_CODES[name] for name in NEVER_RAN],
        ],
    )
    points: dict[ClassKey, list[SeriesPoint]] = {}
    for series_id, class_key, value, values, variants, run_id, environment_id, time, *about in rows:
        each = values or [value]
        measured = zip(each, variants or [None] * len(each), strict=True) if value is not None else ()
        known = [(own, variant) for own, variant in measured if own is not None]
        samples, groups = tuple(own for own, _ in known), tuple(variant for _, variant in known)
        point = SeriesPoint(run_id, environment_id, time, samples, groups, *about)  # in the fields' order
        points.setdefault((series_id, class_key), []).append(point)
    return points.items()
