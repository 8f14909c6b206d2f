"""The streams that readers choose from: which one an address without `stream` means, and what each has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hud.models import NIGHTLY, SAMPLES, Stream
from hud.points import nights
from hud.runs import streams
from hud.sql import fetch, fetch_tuples
from runner.suites import CEILINGS

_FEWEST_NIGHTS = 3  # complete ones, until `nightly` is the front stream


@dataclass(frozen=True)
class Activity:
    """A stream with results, and when the newest came."""

    pk: int
    name: str
    title: str
    newest: datetime


@dataclass(frozen=True)
class Subject:
    """The experiments that a table shows: those on one arch, in one mode and dtype."""

    arch: str
    mode: str
    dtype: str


def with_results() -> list[Activity]:
    """Return the streams that have results and are not archived, the newest first: 1 statement."""
    return fetch(
        Activity,
        """
        SELECT s.id AS pk, s.name, s.title, r.created AS newest FROM hud_stream s
        CROSS JOIN LATERAL (
            SELECT created FROM hud_run WHERE stream_id = s.id ORDER BY order_time DESC LIMIT 1) r
        WHERE s.archived IS NULL AND EXISTS (SELECT FROM hud_series WHERE stream_id = s.id)
        ORDER BY r.created DESC, s.id
        """,
        {},
    )


def with_experiment(pk: int, preferred: Stream) -> Stream:
    """Return a stream with results of an experiment: the preferred one if it has any, else the one with the
    newest, and without any the preferred one: 1 statement."""
    found = Stream.objects.raw(
        """
        SELECT t.* FROM hud_series s JOIN hud_stream t ON t.id = s.stream_id
        CROSS JOIN LATERAL (
            SELECT order_time FROM hud_point WHERE series_id = s.id ORDER BY order_time DESC LIMIT 1) p
        WHERE s.experiment_id = %(experiment)s
        ORDER BY t.id = %(preferred)s DESC, p.order_time DESC LIMIT 1
        """,
        {"experiment": pk, "preferred": preferred.pk},
    )
    return next(iter(found), preferred)


def front() -> Stream:
    """Return the stream that an address without one means: what an operator chose, else `nightly` once it has
    three complete nights, else `samples`, and while that is empty the first stream with results."""
    chosen = Stream.objects.filter(is_front=True).first()
    if chosen:
        return chosen
    by_name = {stream.name: stream for stream in Stream.objects.filter(name__in=[NIGHTLY, SAMPLES])}
    if NIGHTLY in by_name and _complete_nights(by_name[NIGHTLY]) >= _FEWEST_NIGHTS:
        return by_name[NIGHTLY]
    samples = by_name.get(SAMPLES) or Stream.objects.get_or_create(name=SAMPLES)[0]
    filled = Stream.objects.filter(archived=None, series__isnull=False).order_by("pk").distinct()
    return samples if samples.series.exists() else filled.first() or samples


def chosen(name: str) -> Stream | None:
    """Return the stream that an address names, the front stream without a name, None if there is none."""
    return streams.named(name).first() if name else front()


def _complete_nights(stream: Stream) -> int:
    """Return how many nights of a stream are complete, at most as many as matter. Ceilings are no night."""
    measured = {
        run
        for (run,) in fetch_tuples(
            """
            SELECT DISTINCT p.run_id FROM hud_series s JOIN hud_experiment e ON e.id = s.experiment_id
            JOIN hud_seriesstate t ON t.series_id = s.id JOIN hud_point p ON p.series_id = s.id AND NOT p.rerun
            WHERE s.stream_id = %(stream)s AND e.suite <> %(ceilings)s AND t.headline AND p.value IS NOT NULL
            """,
            {"stream": stream.pk, "ceilings": CEILINGS},
        )
    }
    return sum(night.complete and not measured.isdisjoint(night.runs) for night in nights.read(stream))


def subjects(stream: Stream, given: Mapping[str, str]) -> list[Subject]:
    """Return what the stream's newest night with headline points measured, the most measured first; `given`
    narrows it by arch, mode or dtype. Without such a night, of all the stream has. An arch, mode or dtype
    that is '' is never a choice."""
    rows = _counted(stream, given, newest_only=True) or _counted(stream, given, newest_only=False)
    return [Subject(arch, mode, dtype) for arch, mode, dtype, _count in rows]


def _counted(stream: Stream, given: Mapping[str, str], *, newest_only: bool) -> list[tuple[Any, ...]]:
    return fetch_tuples(
        """
        SELECT e.arch, e.mode, e.dtype, count(*) FROM hud_series s
        JOIN hud_experiment e ON e.id = s.experiment_id AND e.suite <> %(ceilings)s
        JOIN hud_seriesstate t ON t.series_id = s.id AND t.headline
        WHERE s.stream_id = %(stream)s AND e.arch <> '' AND e.mode <> '' AND e.dtype <> ''
            AND %(arch)s IN ('', e.arch) AND %(mode)s IN ('', e.mode) AND %(dtype)s IN ('', e.dtype)
            AND (NOT %(newest_only)s OR t.run_id = ANY(%(runs)s::int[]))
        GROUP BY 1, 2, 3 ORDER BY count(*) DESC, 1, 2, 3
        """,
        {
            "stream": stream.pk,
            "ceilings": CEILINGS,
            **{name: given.get(name, "") for name in ("arch", "mode", "dtype")},
            "newest_only": newest_only,
            "runs": _newest_runs(stream) if newest_only else [],
        },
    )


def _newest_runs(stream: Stream) -> list[int]:
    of_stream = nights.read(stream)
    return list(of_stream[-1].runs) if of_stream else []
