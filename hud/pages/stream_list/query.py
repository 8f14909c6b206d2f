"""All streams, with what each has. The API answers the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, OuterRef, Q, Subquery

from hud.models import Run, Series, Stream
from hud.points import nights
from hud.points.nights import Night
from hud.points.streams import front
from hud.tables.table import DataTable

COLUMNS = DataTable(
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


def read() -> list[StreamLine]:
    """Return all streams, those with the newest results first and archived ones last: 2 statements, those
    that find the front stream, and 1 for each stream with runs."""
    newest = Run.objects.filter(stream=OuterRef("pk")).order_by("-order_time").values("created")[:1]
    found = Stream.objects.select_related("owner", "key", "reference").annotate(
        newest=Subquery(newest), count=Count("runs"), is_archived=Q(archived__isnull=False)
    )
    counted = Series.objects.values_list("stream").annotate(
        experiments=Count("experiment", distinct=True), series=Count("pk")
    )
    of_series = {stream: counts for stream, *counts in counted.order_by()}
    front_stream = front()
    lines = []
    for one in found.order_by("is_archived", F("newest").desc(nulls_last=True), "name"):
        experiments, series = of_series.get(one.pk, (0, 0))
        of_one = nights.read(one) if one.count else []
        lines.append(StreamLine(one, one.newest, one.count, experiments, series, of_one, one == front_stream))
    return lines
