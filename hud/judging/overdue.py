"""Suites without results: what had results in the last two weeks, and has none for a day and a half."""

from datetime import datetime, timedelta

from django.conf import settings

from hud.models import OverdueSuite, Stream
from hud.sql import fetch_tuples

LATE = timedelta(hours=36)
GIVEN_UP = timedelta(days=14)  # with the latest result this old, nobody expects another


def overdue_suites(now: datetime, stream: Stream | None = None) -> list[OverdueSuite]:
    """Return each suite and arch that is overdue on the default branch of a stream, or of any that is not
    archived, the longest first: 1 statement over the states of series, no history. The rows are not stored.
    Where every series of a suite has a single point, it was uploaded once, and nobody waits for more.

    The time is that of the measurement: of a run of ours its end, of an upload what it says. Where it says a
    commit's alone, it is the time of the upload, unless the commit is so old that this is a backfill.
    """
    rows = fetch_tuples(
        """
        SELECT w.name, e.suite, e.arch, max(
            CASE WHEN r.finished IS NOT NULL AND r.upload_id IS NULL THEN r.finished
                WHEN r.order_time_source = 'commit'
                    AND r.created - p.newest < %(given_up)s THEN r.created
                ELSE p.newest END)
        FROM (
            SELECT t.stream_id, t.experiment_id, s.run_id, max(s.order_time) AS newest,
                bool_or(s.several) AS several
            FROM (SELECT series_id, run_id, order_time, cardinality(recent) > 1 AS several
                FROM hud_seriesstate OFFSET 0) s
            JOIN hud_series t ON t.id = s.series_id
            WHERE %(stream)s::int IS NULL OR t.stream_id = %(stream)s
            GROUP BY t.stream_id, t.experiment_id, s.run_id
        ) p
        JOIN hud_experiment e ON e.id = p.experiment_id
        JOIN hud_run r ON r.id = p.run_id
        JOIN hud_stream w ON w.id = p.stream_id AND w.archived IS NULL
        GROUP BY w.name, e.suite, e.arch HAVING bool_or(p.several)
        """,
        {"given_up": GIVEN_UP, "stream": stream and stream.pk},
    )
    late = [row for row in rows if LATE < now - row[3] <= GIVEN_UP]
    branch = str(settings.HUD_DEFAULT_BRANCH)
    return [
        OverdueSuite(stream=name, suite=suite, branch=branch, arch=arch, since=since)
        for name, suite, arch, since in sorted(late, key=lambda row: (row[3], *row[:3]))
    ]
