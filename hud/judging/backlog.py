"""The backlog: verdicts that series wait for, since when and until about when; and results of suites that had
some in the last two weeks, and have none for a day and a half."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from hud.models import ACTIVE, Backlog, OverdueSuite, Stream
from hud.runs.branches import stored_names
from hud.sql import fetch_tuples

LATE = timedelta(hours=36)
GIVEN_UP = timedelta(days=14)  # with the latest result this old, nobody expects another


@dataclass(frozen=True)
class Waiting:
    """`since` and `until` are None until the judge has worked on them for a round."""

    series: int
    since: datetime | None
    until: datetime | None


def note_round(judged: int, began: datetime) -> None:
    """Note a round of the judge that began then; one without work ends the backlog."""
    if not judged:
        Backlog.objects.all().delete()
        return
    with transaction.atomic():
        row = Backlog.objects.select_for_update().first() or Backlog(began=began)
        row.judged, row.at = row.judged + judged, timezone.now()
        row.save()


def waiting(stream_id: int | None = None) -> Waiting:
    """Return what waits for the judge, in one stream or all: 1 statement. Runs that are not complete do not
    wait yet. The time is the whole backlog's, since the judge takes the newest of all streams first."""
    ((of_stream, of_all, began, at, judged),) = fetch_tuples(
        """
        WITH pending AS (
            SELECT id, stream_id FROM hud_series WHERE touched_at IS NOT NULL
            UNION SELECT s.id, s.stream_id FROM hud_unjudgedrun u -- OFFSET 0: in this order
            CROSS JOIN LATERAL (
                SELECT id FROM hud_run WHERE id = u.run_id AND state <> ALL(%(active)s) OFFSET 0) r
            CROSS JOIN LATERAL (SELECT series_id FROM hud_point WHERE run_id = r.id OFFSET 0) p
            CROSS JOIN LATERAL (SELECT id, stream_id FROM hud_series WHERE id = p.series_id OFFSET 0) s
        )
        SELECT count(*) FILTER (WHERE %(stream)s::int IS NULL OR stream_id = %(stream)s), count(*),
            (SELECT began FROM hud_backlog LIMIT 1), (SELECT at FROM hud_backlog LIMIT 1),
            (SELECT judged FROM hud_backlog LIMIT 1)
        FROM pending
        """,
        {"stream": stream_id, "active": list(ACTIVE)},
    )
    if began is None:
        return Waiting(of_stream, None, None)
    each = max((at - began) / judged, timedelta(microseconds=1))
    return Waiting(of_stream, began, at + each * of_all)


def overdue_suites(now: datetime, stream: Stream | None = None) -> list[OverdueSuite]:
    """Return each suite and arch that is overdue on the default branch of a stream, or of any that is not
    archived, the longest first: 1 statement over the runs of the last weeks. The rows are not stored. Where
    every series of a suite has a single point, it was uploaded once, and nobody waits for more.

    The time is that of the measurement: of a run of ours its end, of an upload what it says. Where it says a
    commit's alone, it is the time of the upload, unless the commit is so old that this is a backfill.
    """
    rows = fetch_tuples(
        """
        SELECT w.name, own.suite, own.arch, own.newest FROM (
            SELECT o.stream_id, o.suite, o.arch, max(
                CASE WHEN r.finished IS NOT NULL AND r.upload_id IS NULL THEN r.finished
                    WHEN r.order_time_source = 'commit'
                        AND r.created - r.order_time < %(given_up)s THEN r.created
                    ELSE r.order_time END) AS newest
            FROM hud_run r JOIN hud_runsubject o ON o.run_id = r.id
            WHERE greatest(r.created, r.finished) > %(now)s - %(given_up)s
                AND NOT r.rerun AND r.branch = ANY(%(branches)s)
            GROUP BY 1, 2, 3
        ) own JOIN hud_stream w ON w.id = own.stream_id AND w.archived IS NULL
        WHERE (%(stream)s::int IS NULL OR w.id = %(stream)s)
            AND own.newest > %(now)s - %(given_up)s AND own.newest < %(now)s - %(late)s
            AND EXISTS (SELECT FROM hud_runsubject o WHERE (o.stream_id, o.suite, o.arch)
                = (own.stream_id, own.suite, own.arch) HAVING count(DISTINCT run_id) > 1)
            AND EXISTS (
                SELECT FROM hud_experiment e CROSS JOIN LATERAL (
                    SELECT FROM hud_series s CROSS JOIN LATERAL (
                        SELECT FROM hud_seriesstate WHERE series_id = s.id AND cardinality(recent) > 1
                            OFFSET 0) t
                    WHERE s.experiment_id = e.id AND s.stream_id = own.stream_id OFFSET 0) several
                WHERE e.suite = own.suite AND e.arch = own.arch)
        """,
        {
            "now": now,
            "given_up": GIVEN_UP,
            "late": LATE,
            "stream": stream and stream.pk,
            "branches": stored_names(),
        },
    )
    branch = str(settings.HUD_DEFAULT_BRANCH)
    return [
        OverdueSuite(stream=name, suite=suite, branch=branch, arch=arch, since=since)
        for name, suite, arch, since in sorted(rows, key=lambda row: (row[3], *row[:3]))
    ]
