"""All streams, with what each has. The API answers the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hud.columns import Columns
from hud.models import Stream
from hud.points import nights
from hud.points.nights import Night
from hud.points.streams import front
from hud.sql import fetch_tuples

COLUMNS = Columns(
    """name=stream.name title=stream.title owner=stream.owner?.username reference=stream.reference?.name
    front=is_front archived aliases=stream.aliases created=stream.created newest experiments series runs
    newest_night=night?.side newest_night_time newest_night_complete""",
    archived=lambda line: line.stream.archived is not None,
    newest_night_time=lambda line: line.night and line.night.time,
    newest_night_complete=lambda line: line.night and line.night.complete,
)


@dataclass(frozen=True)
class StreamLine:
    """A stream, with its counts and its nights, oldest first."""

    stream: Stream
    newest: datetime | None
    runs: int
    experiments: int
    series: int
    nights: Sequence[Night]
    is_front: bool  # chosen, or by default

    @property
    def night(self) -> Night | None:
        """Return the newest one."""
        return self.nights[-1] if self.nights else None

    def to_row(self) -> dict[str, Any]:
        return COLUMNS.row(self)


def read() -> list[StreamLine]:
    """Return all streams, those with the newest results first and archived ones last: 2 statements, those
    that find the front stream, and 1 for each stream with runs."""
    counts = fetch_tuples(
        """
        SELECT s.id, (SELECT created FROM hud_run WHERE stream_id = s.id
                ORDER BY order_time DESC LIMIT 1) AS newest,
            (SELECT count(*) FROM hud_run WHERE stream_id = s.id),
            coalesce(c.experiments, 0), coalesce(c.series, 0)
        FROM hud_stream s LEFT JOIN (
            SELECT stream_id, count(DISTINCT experiment_id) AS experiments, count(*) AS series
            FROM hud_series GROUP BY 1
        ) c ON c.stream_id = s.id
        ORDER BY s.archived IS NOT NULL, newest DESC NULLS LAST, s.name
        """,
        {},
    )
    front_stream = front()
    by_id = Stream.objects.select_related("owner", "key", "reference").in_bulk()
    return [
        StreamLine(
            one, newest, runs, experiments, series, nights.read(one) if runs else [], one == front_stream
        )
        for pk, newest, runs, experiments, series in counts
        if (one := by_id.get(pk))
    ]
