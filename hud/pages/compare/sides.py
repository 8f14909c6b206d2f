"""The sides of a comparison of runs: sets of runs, and of each experiment its newest point in them; and those
that may be chosen.

`latest:`, `branch:`, `host:` and `date:` mean the newest point of each experiment within 14 days: not every
night runs all of them. Those of `latest:` end with the night that the overview shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from hud.models import TERMINAL, Run, State, Stream
from hud.points import nights, sides
from hud.points.sides import BadSide, runs_of
from hud.points.streams import night_of
from hud.runs.branches import branch_or_default
from hud.runs.lines import OfRun
from hud.sql import fetch_models, fetch_tuples
from hud.tables.table import Column, DataTable

MOST_SIDES = 4
WINDOW = timedelta(days=14)
_MOST_RUNS, _MOST_OFFERED = 3000, 40
_MOST_NIGHTS = 14  # among which the last two are looked for
SIDE = DataTable(
    "side=text stream",
    Column("runs", value=lambda side: side.runs[:100]),
    Column("run_count", value=lambda side: len(side.runs)),
    "commit=newest.commit branch host=newest.host_name",
    Column("from", value=lambda side: side.start.isoformat()),
    Column("to", value=lambda side: side.newest.order_time.isoformat()),
)

OFFER = DataTable("""
    side run=run.pk stream=run.stream.name title source=run.source filename=run.upload?.filename branch
    commit=run.commit host=run.host_name time=run.order_time
""")


@dataclass(frozen=True)
class Side:
    """One side. `newest` is the run that stands for it."""

    text: str
    kind: str
    name: str
    newest: Run
    runs: tuple[int, ...]
    start: datetime
    ab_side: int | None = None  # of an A/B run

    @property
    def title(self) -> str:
        if self.kind == "run":
            return f"Run {self.newest.pk}"
        if self.kind == "commit":
            return f"Commit {self.newest.commit[:10]}"
        titles = {"host": "Host", "date": "As of", "night": "Night of"}
        return f"{titles.get(self.kind, 'Latest on')} {self.name or self.branch}"

    @property
    def about(self) -> str:
        """Return what tells the side apart: title of the run, or over how many runs and days it reaches."""
        end = self.newest.order_time
        if self.kind in {"run", "commit"} and len(self.runs) == 1:
            own = f"{end:%-d %b %Y %H:%M}"
            if self.ab_side is not None:
                name = self.newest.candidate if self.ab_side else self.newest.base_interpreter
                return f"{'candidate' if self.ab_side else 'baseline'} {name}, {own}"
            return f"{self.newest.title}, {own}" if self.newest.title else own
        runs = f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}"
        return f"{runs}, {self.start:%-d %b} to {end:%-d %b %Y}"

    @property
    def branch(self) -> str:
        return branch_or_default(self.newest.branch)

    @property
    def stream(self) -> str:
        return self.newest.stream.name


def resolve(text: str, stream: Stream, subject: Mapping[str, str], *, is_base: bool) -> Side:
    """Return the side: 1 statement, and those of `night_of` for a night or `latest:`. `subject` is the arch,
    mode and dtype that are compared; `is_base` chooses the side of an A/B run. Raise BadSide."""
    named = sides.parse(text)
    kind, name = named.kind, named.name
    if named != sides.Side(kind, name):
        raise BadSide(f"{text[:80]!r} is a side of one experiment, which What changed compares", 400)
    if kind == "run":
        with_stream = "JOIN hud_stream stream ON stream.id = one.stream_id WHERE one.id = %(run)s"
        rows = fetch_models(Run, with_stream, {"run": name}, stream=Stream)
    else:
        runs = runs_of(named, stream)
        night = night_of(f"{kind}:{name}", stream, subject) if kind in {"night", "latest"} else None
        if kind == "night":
            own = night.runs if night else ()
            runs = Run.objects.filter(pk__in=own).order_by("-order_time", "-pk")
        elif night:
            runs = runs.filter(Q(order_time__lt=night.time) | Q(pk__in=night.runs))
        elif kind != "commit":
            runs = runs.filter(state__in=TERMINAL)
        rows = list(runs.select_related("stream").defer("provenance")[:_MOST_RUNS])
    if kind == "commit":
        commits = sorted({run.commit for run in rows})
        if len(commits) > 1 and name not in commits:
            several = ", ".join(commit[:12] for commit in commits[:5])
            raise BadSide(f"{len(commits)} commits begin with {name}: {several}; give more of it", 400)
        rows = [run for run in rows if run.commit == name or name not in commits]
    elif kind not in {"run", "night"} and rows:
        until = sides.end_of(name) if kind == "date" else rows[0].order_time
        rows = [run for run in rows if run.order_time >= until - WINDOW]
    if not rows:
        is_run = kind == "run"
        raise BadSide(f"no run has the id {name}" if is_run else f"no run of {stream.name} is {text[:120]!r}")
    ab_side = int(not is_base) if kind == "run" and rows[0].is_ab else None
    return Side(text, kind, name, rows[0], tuple(run.pk for run in rows), rows[-1].order_time, ab_side)


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
