"""How many series wait to be judged, since when, and until about when."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from hud.models import ACTIVE, Backlog
from hud.sql import fetch_tuples


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
            UNION SELECT s.id, s.stream_id FROM hud_unjudgedrun u
            JOIN hud_run r ON r.id = u.run_id AND r.state <> ALL(%(active)s)
            JOIN hud_point p ON p.run_id = r.id JOIN hud_series s ON s.id = p.series_id
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
