"""A store of any size: rows that SQL makes, as uploads of nightly runs would have left them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django.db import connection
from django.db.models import Count

from hud.models import Environment, Measurement, Run, Series, State, Stream
from tests.support import points

_FIRST_NIGHT = datetime(2024, 1, 1, tzinfo=timezone.utc)


def grow(rows: int) -> None:
    """Adds nightly runs of every series there is until about this many measurements are stored."""
    series = Series.objects.count()
    missing = max(0, rows - Measurement.objects.count()) // series
    nights = Run.objects.filter(source="nightly").count()
    for number in range(nights, nights + missing):
        nightly(_FIRST_NIGHT + timedelta(days=number))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")


def nightly(at: datetime) -> Run:
    """Adds a run with a value of every series of the largest stream, with noise of about 1 %."""
    environment = Environment.objects.first()
    assert environment, "nothing was uploaded yet"
    largest = Stream.objects.annotate(size=Count("series")).latest("size")
    run = Run.objects.create(
        stream=largest,
        state=State.SUCCEEDED,
        title="nightly",
        source="nightly",
        host_name="h200-17",
        commit=f"{at.timestamp():040.0f}",
        branch="main",
        order_time=at,
        order_time_source="commit",
        started=at,
        finished=at,
    )
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO hud_detailedmeasurement
                (run_id, series_id, environment_id, order_time, value, samples, spread, n, status, repeat,
                side)
            SELECT %(run)s, id, %(environment)s, %(at)s, value, ARRAY[value - 0.01, value, value + 0.01],
                0.001, 3, 0, 0, 0
            FROM (SELECT id, (50 + id) * (1 + (random() + random() - 1) / 40) AS value FROM hud_series
                WHERE stream_id = %(stream)s) made
            """,
            {"run": run.pk, "environment": environment.pk, "at": at, "stream": largest.pk},
        )
    points.make_of_runs([run.pk])
    return run
