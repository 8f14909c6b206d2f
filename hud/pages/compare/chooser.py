"""The runs and nights that may be compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils import timezone

from hud.models import TERMINAL, Run, State, Stream
from hud.runs.lines import OfRun
from hud.points import nights
from hud.sql import fetch_tuples
from hud.tables.table import DataTable

_MOST_OFFERED = 40
_MOST_NIGHTS = 14  # among which the last two are looked for
OFFER = DataTable("""
    side run=run.pk stream=run.stream.name title source=run.source filename=run.upload?.filename branch
    commit=run.commit host=run.host_name time=run.order_time
""")


@dataclass(frozen=True)
class Offer(OfRun):
    """A run that may be a side."""

    run: Run

    @property
    def side(self) -> str:
        return f"run:{self.run.pk}"

    @property
    def origin(self) -> list[str]:
        """Return what distinguishes runs of one title and commit: source, file and external id."""
        return [*filter(None, [self.run.source]), *super().origin]


@dataclass(frozen=True)
class Chooser:
    runs: list[Offer]
    nights: tuple[str, str] | None  # sides: the newest two nights with a common case
    newest_two: tuple[str, str] | None  # the newest two runs of the stream with a common case


def offered(stream: Stream, *, all_streams: bool = False) -> Chooser:
    """Return the newest runs of the stream, or of all with the stream's first; and its last two nights: 3
    statements."""
    ended = Run.objects.filter(state__in=TERMINAL).order_by("-order_time", "-pk")
    ended = ended.select_related("upload", "stream")
    ended = ended.defer("provenance", "upload__parameters", "upload__receipt")
    newest = list((ended if all_streams else ended.filter(stream=stream))[:_MOST_OFFERED])
    runs = sorted(newest, key=lambda run: (run.stream_id != stream.pk, run.stream.name))
    now = timezone.now()
    ready = [night for night in reversed(nights.read(stream)) if night.is_default(now)][:_MOST_NIGHTS]
    own = [run.pk for run in runs if run.stream_id == stream.pk and not run.rerun and not run.is_ab]
    last_nights, last_runs = _newest_two([[night.runs for night in ready], [(run,) for run in own]])
    return Chooser(
        [Offer(run) for run in runs],
        last_nights and (ready[last_nights[1]].side, ready[last_nights[0]].side),
        last_runs and (f"run:{own[last_runs[1]]}", f"run:{own[last_runs[0]]}"),
    )


def _newest_two(lists: Sequence[Sequence[Sequence[int]]]) -> list[tuple[int, int] | None]:
    """Return of each list of sets of runs, newest first, the first that shares a series with a later one, and
    the first such: 1 statement. A cancelled run counts as none."""
    rows = [
        (number, place, run)
        for number, sets in enumerate(lists)
        for place, runs in enumerate(sets)
        for run in runs
    ]
    numbers, places, runs = zip(*rows, strict=True) if rows else ((), (), ())
    pairs = fetch_tuples(
        """
        WITH member AS (
            SELECT m.* FROM unnest(%(numbers)s::int[], %(places)s::int[], %(runs)s::int[])
                AS m(number, place, run_id)
            JOIN hud_run r ON r.id = m.run_id AND r.state <> %(cancelled)s
        )
        SELECT number, two.* FROM (SELECT DISTINCT number FROM member) list CROSS JOIN LATERAL (
            SELECT * FROM (  -- in this order, so that the search ends with the first
                SELECT DISTINCT newer.place newer, older.place older
                FROM member newer JOIN member older ON older.place > newer.place
                WHERE newer.number = list.number AND older.number = list.number
                ORDER BY newer, older OFFSET 0
            ) pair WHERE EXISTS (
                SELECT FROM member newer
                JOIN member older ON older.number = newer.number AND older.place = pair.older
                CROSS JOIN LATERAL (  -- OFFSET 0: one look-up in the index of runs for each
                    SELECT series_id FROM hud_point
                    WHERE run_id = newer.run_id AND value IS NOT NULL OFFSET 0) p
                CROSS JOIN LATERAL (
                    SELECT FROM hud_point WHERE run_id = older.run_id AND series_id = p.series_id
                        AND value IS NOT NULL OFFSET 0) q
                WHERE newer.number = list.number AND newer.place = pair.newer
            ) LIMIT 1
        ) two
        """,
        {"numbers": list(numbers), "places": list(places), "runs": list(runs), "cancelled": State.CANCELLED},
    )
    first = {number: (newer, older) for number, newer, older in pairs}
    return [first.get(number) for number in range(len(lists))]
