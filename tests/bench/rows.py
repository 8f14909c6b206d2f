"""A store of any size: rows that SQL makes, as uploads of nightly runs would have left them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django.db import connection

from hud.models import Environment, Measurement, Run, Series, State

_FIRST_NIGHT = datetime(2024, 1, 1, tzinfo=timezone.utc)


def grow(rows: int) -> None:
    """Adds nightly runs of every series there is until about this many measurements are stored."""
    series = Series.objects.count()
    environment = Environment.objects.first()
    assert environment, "nothing was uploaded yet"
    missing = max(0, rows - Measurement.objects.count()) // series
    nights = Run.objects.filter(source="nightly").count()
    for night in range(nights, nights + missing):
        at = _FIRST_NIGHT + timedelta(days=night)
        run = Run.objects.create(
            state=State.SUCCEEDED,
            title="nightly",
            source="nightly",
            host_name="h200-17",
            commit=f"{night:040x}",
            branch="main",
            order_time=at,
            order_time_source="commit",
            started=at,
            finished=at,
        )
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO hud_measurement
                    (run_id, series_id, environment_id, order_time, value, samples, spread, n, status, repeat,
                    side)
                SELECT %(run)s, id, %(environment)s, %(at)s, value, ARRAY[value - 0.01, value, value + 0.01],
                    0.001, 3, 0, 0, 0
                FROM (SELECT id, 5 + id / 100.0 + random() AS value FROM hud_series) AS made
                """,
                {"run": run.pk, "environment": environment.pk, "at": at},
            )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
