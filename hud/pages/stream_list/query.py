"""All streams, with what each has. The API answers the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hud.models import Stream
from hud.points import nights
from hud.points.nights import Night
from hud.points.streams import front
from hud.sql import fetch


@dataclass(frozen=True)
class _Counts:
    pk: int
    newest: datetime | None
    runs: int
    experiments: int
    series: int


@dataclass(frozen=True)
class StreamLine:
    """A stream, with its counts and its nights, oldest first."""

    stream: Stream
    counts: _Counts
    nights: Sequence[Night]
    is_front: bool  # chosen, or by default

    @property
    def night(self) -> Night | None:
        """Return the newest one."""
        return self.nights[-1] if self.nights else None

    def to_row(self) -> dict[str, Any]:
        one, counts = self.stream, self.counts
        return {
            "name": one.name, "title": one.title, "owner": one.owner.get_username() if one.owner else "",
            "reference": one.reference.name if one.reference else "", "front": self.is_front,
            "archived": one.archived is not None, "aliases": one.aliases, "created": one.created,
            "newest": counts.newest, "experiments": counts.experiments, "series": counts.series,
            "runs": counts.runs,
            "newest_night": self.night.side if self.night else "",
            "newest_night_time": self.night.time if self.night else None,
            "newest_night_complete": self.night.complete if self.night else None,
        }  # fmt: skip


def read() -> list[StreamLine]:
    """Return all streams, those with the newest results first and archived ones last: 2 statements, those
    that find the front stream, and 1 for each stream with runs."""
    counts = fetch(
        _Counts,
        """
        SELECT s.id AS pk, (SELECT created FROM hud_run WHERE stream_id = s.id
                ORDER BY order_time DESC LIMIT 1) AS newest,
            (SELECT count(*) FROM hud_run WHERE stream_id = s.id) AS runs,
            coalesce(c.experiments, 0) AS experiments, coalesce(c.series, 0) AS series
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
        StreamLine(stream, row, nights.read(stream) if row.runs else [], stream == front_stream)
        for row in counts
        if (stream := by_id.get(row.pk))
    ]
