"""A night of 4,000 series: verdicts from their states, with a history of 250 and of 2,500 points."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

from tests.bench.application import Application
from tests.bench.figures import Figure
from tests.bench.records import body

SERIES = 4000
POINTS = (250, 2500)
_LEVEL = 100  # values that a level keeps
_RECENT = 60


def night(application: Application) -> Iterator[Figure]:
    """Points are made by SQL; states as the judge leaves them after so many points."""
    from django.db import connection

    from hud.judging.judge import process_pending
    from hud.models import Measurement, Regression, Series, UnjudgedRun
    from tests.bench.rows import grow, nightly

    application.upload(body(-4, records=SERIES), "commit=night0&commit_date=2023-01-01")
    while process_pending():
        pass
    for points in POINTS:
        grow(points * Series.objects.count())
        newest = Measurement.objects.latest("order_time").order_time
        with connection.cursor() as cursor:
            cursor.execute(_STATES, {"level": _LEVEL, "recent": _RECENT, "points": points})
            cursor.execute("VACUUM ANALYZE hud_seriesstate")
        run = nightly(newest + timedelta(days=1))
        UnjudgedRun.objects.create(run=run)
        database_ms = application.database_cpu_ms()
        start_s, cpu_s = time.monotonic(), time.process_time()
        while process_pending():
            pass
        cpu_ms = (time.process_time() - cpu_s) * 1000
        wall_s = time.monotonic() - start_s
        database_ms = application.database_cpu_ms() - database_ms
        judged = Series.objects.filter(states__run=run, touched_at=None).distinct().count()
        assert judged == SERIES, judged
        with_history = f"a night with {points} points of history"
        yield Figure("judge", f"{with_history}: CPU a series", cpu_ms / SERIES, "ms", 1.0)
        yield Figure("judge", f"{with_history}: the database's CPU a series", database_ms / SERIES, "ms")
        yield Figure("judge", f"{with_history}: all verdicts there after", wall_s, "s", 5.0)
        yield Figure("judge", f"{with_history}: regressions opened", Regression.objects.count(), "")


# A level of the newest points, about which the judge knows all that it keeps
_STATES = """
    UPDATE hud_seriesstate s SET order_time = newest.order_time, run_id = newest.run_id, points = %(points)s,
        recent = newest.values[greatest(1, cardinality(newest.values) - %(recent)s + 1):],
        level = s.level || jsonb_build_object(
            'values', to_jsonb(newest.values),
            'groups', to_jsonb(array_fill(NULL::text, ARRAY[cardinality(newest.values)])),
            'points', %(points)s, 'last_run', newest.run_id, 'move', NULL, 'moved', '[]'::jsonb)
    FROM (
        SELECT w.series_id, max(p.order_time) AS order_time, max(p.run_id) AS run_id,
            array_agg(p.value ORDER BY p.order_time) AS values
        FROM hud_seriesstate w JOIN LATERAL (
            SELECT m.order_time, m.run_id, m.value FROM hud_point m
            WHERE m.series_id = w.series_id ORDER BY m.order_time DESC LIMIT %(level)s) p ON true
        GROUP BY w.series_id
    ) newest WHERE newest.series_id = s.series_id
"""
