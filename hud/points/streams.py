"""The streams that readers choose from: which one an address without `stream` means, and what each has."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q, Subquery
from django.utils import timezone

from hud.models import NIGHTLY, SAMPLES, Point, Run, Series, SidePoint, Stream
from hud.points import nights
from hud.points.kept import Kept
from hud.points.nights import MODEL_SUITES, NEVER, Night, Subject
from hud.runs import streams
from hud.sql import fetch_models, fetch_tuples, int_array
from hud.tables.table import DataTable
from runner.schema.devices import is_named
from runner.suites import CEILINGS

_FEWEST_NIGHTS = 3  # complete ones, until `nightly` is the front stream
_RECENT_NIGHTS = 30  # in which a default subject was measured
# Of a stream `one`. A range, as PostgreSQL reads all series to find an equal id that none has.
_HAS_SERIES = "EXISTS (SELECT FROM hud_series WHERE stream_id BETWEEN own.id AND own.id)"

COLUMNS = DataTable(
    """name:str=stream.name title:str=stream.title owner:str=stream.owner?.username
    reference:str=stream.reference?.name front:bool=is_front archived:bool aliases=stream.aliases
    created:datetime=stream.created newest:datetime|None experiments:int series:int runs:int
    newest_night=night?.side newest_night_time newest_night_complete""",
    archived=lambda line: line.stream.archived is not None,
    newest_night_time=lambda line: line.night and line.night.time,
    newest_night_complete=lambda line: line.night and line.night.complete,
)


@dataclass(frozen=True)
class StreamLine:
    """A stream, with its counts and its nights, oldest first, and the newest one with results."""

    stream: Stream
    newest: datetime | None
    runs: int
    experiments: int
    series: int
    nights: Sequence[Night]
    night: Night | None
    is_front: bool  # chosen, or by default


def read() -> list[StreamLine]:
    """Return all streams, those with the newest results first and archived ones last: 2 statements, those
    that find the front stream, and 2 for each stream with runs."""
    of_run = {"run__gte": OuterRef("pk"), "run__lte": OuterRef("pk")}  # a range, as in `_HAS_SERIES`
    points, side_points = (kind.objects.filter(**of_run) for kind in (Point, SidePoint))
    points = points.exclude(status_code__in=NEVER)
    measured = Run.objects.filter(Exists(points) | Exists(side_points))
    newest = measured.filter(stream=OuterRef("pk")).order_by("-order_time").values("created")[:1]
    streams = Stream.objects.select_related("owner", "key", "reference").annotate(
        newest=Subquery(newest), count=Count("runs"), is_archived=Q(archived__isnull=False)
    )
    counted = Series.objects.values_list("stream").annotate(
        experiments=Count("experiment", distinct=True), series=Count("pk")
    )
    of_series = {stream: counts for stream, *counts in counted.order_by()}
    front_stream = front()
    lines = []
    for stream in streams.order_by("is_archived", F("newest").desc(nulls_last=True), "name"):
        experiments, series = of_series.get(stream.pk, (0, 0))
        of_one = nights.read(stream) if stream.count else []
        ids = [pk for night in of_one for pk in night.runs]
        with_results = set(measured.filter(pk__in=ids).values_list("pk", flat=True)) if ids else set()
        night = next((each for each in reversed(of_one) if not with_results.isdisjoint(each.runs)), None)
        is_front = stream == front_stream
        lines.append(
            StreamLine(stream, stream.newest, stream.count, experiments, series, of_one, night, is_front)
        )
    return lines


# The streams `one` that an address may mean without naming one, first the one that it does: what an operator
# chose, else `nightly` once it has three complete nights, else `samples`, and while that is empty the first
# with results. It takes the parameter `samples`. With each: whether anything was ever renamed.
_FRONT_FIRST = f"""CROSS JOIN LATERAL (
        SELECT own.archived IS NULL AND {_HAS_SERIES} AS has_results OFFSET 0) x
    WHERE has_results OR is_front OR has_nights OR name = %(samples)s
    ORDER BY is_front DESC, has_nights DESC, has_results DESC, name = %(samples)s DESC, id"""
_HAS_ALIASES = {"has_aliases": "EXISTS (SELECT FROM hud_alias)"}


def listed() -> list[Any]:
    """Return the streams that have results and are not archived, after the front stream: with when the
    `newest` that ran came, None where the results of a stream are of no run, and whether the judge `may_wait`
    with something, of this stream or another. 1 statement."""
    newest = """LEFT JOIN LATERAL (
        SELECT created FROM hud_run WHERE stream_id = own.id AND own.archived IS NULL AND (
            EXISTS (SELECT FROM hud_point WHERE run_id BETWEEN hud_run.id AND hud_run.id
                AND status <> ALL(%(never)s))
            OR EXISTS (SELECT FROM hud_sidepoint WHERE run_id = hud_run.id))
        ORDER BY order_time DESC LIMIT 1) r ON true"""
    may_wait = """EXISTS (SELECT FROM hud_series WHERE touched_at IS NOT NULL)
        OR EXISTS (SELECT FROM hud_unjudgedrun)"""
    about = {"newest": "r.created", "may_wait": may_wait, **_HAS_ALIASES}
    params = {"samples": SAMPLES, "never": NEVER}
    return fetch_models(Stream, f"{newest} {_FRONT_FIRST}", params, computed=about)


def with_results(among: Iterable[Any]) -> list[Any]:
    """Return those of the listed streams that have results, the newest first."""
    measured = [stream for stream in among if stream.newest]
    return sorted(measured, key=lambda stream: (stream.newest, -stream.pk), reverse=True)


def with_experiments(ids: Collection[int], preferred: Stream) -> Stream:
    """Return a stream with results of experiments: the preferred one if it has any, else the one with the
    newest, and without any the preferred one: 1 statement."""
    measured = """CROSS JOIN LATERAL (
            SELECT max(p.order_time) time FROM hud_series s CROSS JOIN LATERAL (
                SELECT order_time FROM hud_point WHERE series_id = s.id ORDER BY order_time DESC LIMIT 1) p
            WHERE s.experiment_id = ANY(%(experiments)s::int[]) AND s.stream_id = own.id
        ) m WHERE m.time IS NOT NULL ORDER BY own.id <> %(preferred)s, m.time DESC LIMIT 1"""
    known = int_array(pk for pk in ids if pk < 2**31)  # an address may name any number
    models = fetch_models(Stream, measured, {"experiments": known, "preferred": preferred.pk})
    return models[0] if models else preferred


def front() -> Stream:
    """Return the stream that an address without one means: 1 statement."""
    limit = f"{_FRONT_FIRST} LIMIT 1"
    first = fetch_models(Stream, limit, {"samples": SAMPLES}, computed=_HAS_ALIASES)
    return first[0] if first else Stream.objects.get_or_create(name=SAMPLES)[0]


def chosen(name: str, known: Sequence[Stream] = ()) -> Stream | None:
    """Return the stream that an address names, the front stream without a name, None if there is none: no
    statement for one that is among the `known` ones, which `listed` returned."""
    if not name:
        return known[0] if known else front()
    return next((stream for stream in known if stream.name == name), None) or streams.named(name).first()


def note_nights() -> None:
    """Note that `nightly` has enough complete nights with a value. Ceilings are no night."""
    for stream in Stream.objects.filter(name=NIGHTLY, has_nights=False):
        complete = [night for night in nights.read(stream) if night.complete]
        runs = [run for night in complete for run in night.runs]
        measured = Point.objects.filter(run=OuterRef("pk"), value__isnull=False)
        measured = measured.exclude(series__experiment__suite=CEILINGS)
        ids = set(Run.objects.filter(Exists(measured), pk__in=runs).values_list("pk", flat=True))
        if sum(not ids.isdisjoint(night.runs) for night in complete) >= _FEWEST_NIGHTS:
            Stream.objects.filter(pk=stream.pk).update(has_nights=True)


def measured_by(stream: Stream) -> list[tuple[Subject, str]]:
    """Return what a stream has measured: subjects and suites, 1 statement."""
    rows = fetch_tuples(
        """
        SELECT DISTINCT arch, mode, dtype, suite FROM hud_runsubject WHERE stream_id = %(stream)s
        ORDER BY 1, 2, 3, 4
        """,
        {"stream": stream.pk},
    )
    return [(Subject(arch, mode, dtype), suite) for arch, mode, dtype, suite in rows]


def version_of(stream: Stream) -> tuple[Any, ...]:
    """Return what changes when results come into a stream or go: 1 statement."""
    rows = fetch_tuples(
        "SELECT count(*), max(id), sum(points)::bigint FROM hud_run WHERE stream_id = %(stream)s",
        {"stream": stream.pk},
    )
    return stream.pk, *rows[0]


def subjects(of_stream: Sequence[Night], measured: Collection[tuple[Subject, str]]) -> list[Subject]:
    """Return the subjects of a stream, the default one first: that of which the newest night measured most
    headline points, one with models before others, one on a named device before all. None has a part that is
    '', and none has only ceilings. At most 1 statement."""
    known = [subject for subject, suite in measured if suite != CEILINGS]
    names = {subject: parts for subject in known if all(parts := astuple(subject))}
    with_models = {subject for subject, suite in measured if suite in MODEL_SUITES}
    ranks = _ranks(of_stream) if len(names) > 1 else {}
    last = (False, -len(of_stream), 0)
    return sorted(
        names,
        key=lambda subject: (
            not is_named(subject.arch),
            [-part for part in ranks.get(subject, last)],
            subject not in with_models,
            names[subject],
        ),
    )


def subject_of(chosen: Mapping[str, str], of_stream: Sequence[Subject]) -> Subject:
    """Return the subject that an address means: of those of its stream the first with the parts it chose."""
    parts = {name: value for name, value in chosen.items() if value}
    default = of_stream[0] if of_stream else Subject("", "", "")
    matching = (subject for subject in of_stream if replace(subject, **parts) == subject)
    return next(matching, replace(default, **parts))


def night_of(text: str, stream: Stream, chosen: Mapping[str, str]) -> Night | None:
    """Return the night that a date or ``latest:`` means in an address that chose these parts of the subject,
    as all pages do: the newest of the subject, and where it has none on that day the newest of anything. 1
    statement, 2 for a branch, 2 more without a part of the subject, 2 for nights that this process has not
    read."""
    of_stream = nights.read(stream)
    known = [] if all(chosen.values()) else subjects(of_stream, measured_by(stream))
    night = nights.side(text, of_stream, subject_of(chosen, known), stream)
    of_day = [night for night in of_stream if text.removeprefix("night:") in night.names]
    return night or next(reversed(of_day), None)


_counts_of_nights = Kept(64, list[Any])


def _ranks(of_stream: Sequence[Night]) -> dict[Subject, tuple[bool, int, int]]:
    """Return of each subject that a recent night measured whether it has models, the place of that night from
    the newest, and how many headline points it has. Nights that grow count together with the one before."""
    now = timezone.now()
    growing = next((n for n, night in enumerate(reversed(of_stream)) if night.is_default(now)), 0)
    recent = list(reversed(of_stream))[:_RECENT_NIGHTS]
    place_of = {run: -max(index - growing, 0) for index, night in enumerate(recent) for run in night.runs}
    versions = tuple((night.runs, night.versions) for night in recent)

    def read() -> list[tuple[Any, ...]]:
        return fetch_tuples(
            """
        SELECT e.arch, e.mode, e.dtype, e.suite = ANY(%(models)s), t.run_id, count(*)
        FROM hud_seriesstate t JOIN hud_series s ON s.id = t.series_id
        JOIN hud_experiment e ON e.id = s.experiment_id AND e.suite <> %(ceilings)s
        WHERE t.run_id = ANY(%(runs)s) AND t.headline AND t.recent[cardinality(t.recent)] IS NOT NULL
        GROUP BY 1, 2, 3, 4, 5
        """,
            {"runs": list(place_of), "models": MODEL_SUITES, "ceilings": CEILINGS},
        )

    rows = _counts_of_nights.get(("counts", versions), read)
    counts: Counter[tuple[Subject, bool, int]] = Counter()
    for *names, is_model, run, count in rows:
        counts[Subject(*names), is_model, place_of[run]] += count
    ranks: dict[Subject, tuple[bool, int, int]] = {}
    for (subject, is_model, distance), count in counts.items():
        ranks[subject] = max(ranks.get(subject, (False, distance, 0)), (is_model, distance, count))
    return ranks
