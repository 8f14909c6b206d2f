"""Change, merge and delete streams. Each is one transaction with a row of the audit; locks as in
`hud.corrections.deletion`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from hud.accounts import audit
from hud.corrections import waiting
from hud.corrections.deletion import ChangedRows, Deletion, delete_part, judge_again, touch
from hud.corrections.deletion import delete as delete_upload
from hud.corrections.renaming import merge_series, runs_that_come_twice
from hud.ingest.runs import changing_references
from hud.models import OPERATORS_OWN, Import, KnownFailure, Point, Run, Stream, Upload
from hud.points.streams import front
from hud.problems import Problem
from hud.runs import streams
from runner.formats.scalars import INVISIBLE


@dataclass(frozen=True)
class StreamChanges:
    """New settings of a stream; None leaves one as it is. `reference` is a stream's name, '' for none."""

    name: str | None = None
    title: str | None = None
    reference: str | None = None
    front: bool | None = None
    archived: bool | None = None


@dataclass
class Merging(ChangedRows):
    """Counts of what a merge moves. `dropped_uploads` were the same in both streams."""

    runs: int = 0
    series: int = 0
    joined_series: int = 0
    dropped_uploads: int = 0

    @property
    def all_series(self) -> int:
        return self.series + self.joined_series


def change(stream: Stream, changes: StreamChanges, *, who: str) -> Stream:
    """Change a stream; a stream that becomes the front one takes the place of another. Return it as it is
    now. Raise Problem."""
    with changing_references() if changes.reference is not None or changes.name else transaction.atomic():
        stream = _locked(stream)[0]
        subject, before = f"stream {stream.name}", _settings(stream)
        if changes.title is not None:
            stream.title = _printable(changes.title)
        if changes.name is not None and changes.name != stream.name:
            _rename(stream, changes.name)
        if changes.archived is False:
            stream.archived = None
        if changes.reference is not None:
            stream.reference = _reference(stream, changes.reference)
        if changes.front is not None:
            _choose_front(stream, is_front=changes.front)
        stream.save()
        if changes.archived and not stream.archived:
            _check_not_front(stream, "archived")
            stream.archived = timezone.now()
            stream.save(update_fields=["archived"])
        after = _settings(stream)
        if before["reference"] != after["reference"]:
            _judge_again([stream.pk])
        detail = {name: value for name, value in after.items() if value != before[name]}
        if detail.keys() & {"name", "front", "archived"}:
            _check_not_merged(stream)
        if detail:
            audit.note(who=who, action="stream.change", subject=subject, detail=detail)
    return stream


def merge(stream: Stream, into: Stream, *, who: str) -> Merging:
    """Move all that a stream has into another, of which its name becomes an alias. Both are judged anew.
    Raise Problem."""
    done = Merging()
    with changing_references():
        merge_part(done, *to_be_merged(stream, into), who=who)
    return done


def to_be_merged(stream: Stream, into: Stream) -> tuple[Stream, Stream]:
    """Return both, with all streams locked, where the one can be merged into the other. Raise Problem."""
    stream, into = _locked(stream, into)
    check_mergeable(stream, into)
    _check_not_merged(stream, into)
    return stream, into


def merge_part(done: Merging, stream: Stream, into: Stream, who: str, most: int | None = None) -> bool:
    """Drop an upload that both have, or move series with about so many points; all else once none is left.
    Return whether that is so. Raise Problem."""
    stream, into = _locked(stream, into)
    check_mergeable(stream, into)
    same = Upload.objects.filter(stream=into).values("content_key")
    for upload in Upload.objects.filter(stream=stream, content_key__in=same):
        done.dropped_uploads += delete_part(Deletion(), upload, who, most)
        if most:
            return False
    if numbers := runs_that_come_twice(Run.objects.filter(stream=stream), stream=into):
        raise Problem(409, f"{into.name} has the same runs as {numbers}: delete those of one stream first")
    moving = _next_series(stream, most)
    # those of experiments and metrics that both have are joined, the others are found anew by an upload
    done.joined_series += merge_series(
        """
        SELECT o.id, n.id FROM hud_series o LEFT JOIN hud_series n ON n.experiment_id = o.experiment_id
            AND n.metric_id = o.metric_id AND n.stream_id = %(into)s
        WHERE o.id = ANY(%(series)s)
        """,
        {"series": moving, "into": into.pk},
    )[0]
    done.series += stream.series.filter(pk__in=moving).update(stream=into, digest=None)
    if most and moving:
        return False
    done.runs = stream.runs.count()
    into_failures = KnownFailure.objects.filter(stream=into).values("experiment")
    stream.known_failures.filter(experiment__in=into_failures).delete()
    of_into = Import.objects.filter(stream=into).values("content_key")
    Import.objects.filter(stream=stream, content_key__in=of_into).delete()
    Import.objects.filter(stream=stream).update(stream=into)
    for relation in Stream._meta.related_objects:  # runs, uploads, series, keys, schedules, …
        relation.related_model._default_manager.filter(**{relation.field.name: stream}).update(
            **{relation.field.name: into}
        )
    referring = list(Stream.objects.filter(reference=stream).exclude(pk__in=_chain(into)))
    Stream.objects.filter(pk__in=[other.pk for other in referring]).update(reference=into)
    Point.objects.filter(level_stream=stream).update(level_stream=into)  # the database does not do so
    aliases = [stream.name, *stream.aliases]
    stream.delete()  # of which `into` loses the reference, if it has it
    into.refresh_from_db()
    into.aliases = [*into.aliases, *aliases]
    into.save(update_fields=["aliases"])
    _judge_again([into.pk, *(other.pk for other in referring)])
    subject = f"stream {stream.name} into {into.name}"
    audit.note(who=who, action="stream.merge", subject=subject, detail=done.to_json())
    return True


def check_mergeable(stream: Stream, into: Stream) -> None:
    """Raise Problem 409 for a stream that cannot be merged into this one."""
    if stream == into:
        raise Problem(409, "choose another stream to merge it into")
    _check_removable(stream, "merged into another")


def _next_series(stream: Stream, most: int | None) -> list[int]:
    """Return the ids of the stream's first series that have so many points together, or of all."""
    series = stream.series.order_by("pk")
    if most is None:
        return list(series.values_list("pk", flat=True))
    sizes = list(series.annotate(size=Count("point")).values_list("pk", "size")[:most])
    totals = accumulate(size for _pk, size in sizes)
    return [
        pk
        for place, ((pk, _size), total) in enumerate(zip(sizes, totals, strict=True))
        if not place or total <= most
    ]


def delete(stream: Stream, *, who: str) -> None:
    """Delete a stream without results, keys that are valid, and schedules; and the uploads that repeated what
    other streams have. Raise Problem."""
    with changing_references():
        (stream,) = _locked(stream)
        _check_removable(stream, "deleted")
        _check_not_merged(stream)
        if filled := contents(stream):
            words = "delete them or merge it into another stream first"
            raise Problem(409, f"the stream {stream.name} has {', '.join(filled)}: {words}")
        for upload in stream.uploads.all():
            delete_upload(upload, who=who)
        stream.keys.update(stream=None)
        Import.objects.filter(stream=stream).delete()
        Point.objects.filter(level_stream=stream).update(level_stream=None)  # the database does not do so
        stream.delete()
        audit.note(who=who, action="stream.delete", subject=f"stream {stream.name}")


def contents(stream: Stream) -> list[str]:
    """Return what a stream has that keeps it from being deleted, in words."""
    rows: dict[str, Any] = {
        "runs": stream.runs,
        "expected results": stream.expectations,
        "series": stream.series,
        "schedules": stream.schedules,
        "keys": stream.keys.filter(revoked=None),
    }
    return [name for name, queryset in rows.items() if queryset.exists()]


def _locked(*wanted: Stream) -> list[Stream]:
    """Lock all streams, since a cycle of references or two front streams take several, and return these.
    Raise Problem 409 for one that is deleted."""
    by_id = {stream.pk: stream for stream in Stream.objects.select_for_update(no_key=True).order_by("pk")}
    if not all(stream.pk in by_id for stream in wanted):
        raise Problem(409, "the stream is deleted already")
    return [by_id[stream.pk] for stream in wanted]


def _settings(stream: Stream) -> dict[str, object]:
    reference = stream.reference.name if stream.reference else ""
    shown = {"name": stream.name, "title": stream.title, "reference": reference}
    return {**shown, "front": stream.is_front, "archived": stream.archived is not None}


def _printable(title: str) -> str:
    """Return the title. Raise Problem 422 for what a page would not show."""
    if not title.isprintable() or INVISIBLE.search(title):
        raise Problem(422, "a title has no control, zero-width or bidirectional characters", at="/title")
    return title


def _rename(stream: Stream, name: str) -> None:
    streams.check_name(name)
    if stream.name in OPERATORS_OWN:
        raise Problem(409, f"{stream.name} keeps its name, which uploads and schedules rely on")
    if other := streams.named(name).exclude(pk=stream.pk).first():
        raise Problem(409, f"{name} is a name of {other.name}: merge the two, or choose another name")
    stream.aliases = [alias for alias in [*stream.aliases, stream.name] if alias != name]
    stream.name = name


def _reference(stream: Stream, name: str) -> Stream | None:
    """Return the stream of this name, None for ''."""
    if not name:
        return None
    reference = streams.named(name).first()
    if reference is None:
        raise Problem(422, f"no stream is called {name[:60]}", at="/reference")
    if stream.pk in _chain(reference):
        raise Problem(409, f"{reference.name} is, or is judged against, {stream.name}: choose another stream")
    return reference


def _chain(stream: Stream) -> list[int]:
    """Return the ids of a stream, its reference, the reference of that, and so on."""
    references = dict(Stream.objects.values_list("pk", "reference"))
    chain: list[int] = []
    here: int | None = stream.pk
    while here is not None and here not in chain:
        chain.append(here)
        here = references[here]
    return chain


def _choose_front(stream: Stream, *, is_front: bool) -> None:
    if is_front and stream.archived:
        raise Problem(409, f"the stream {stream.name} is archived: open it again first")
    if is_front:
        Stream.objects.filter(is_front=True).exclude(pk=stream.pk).update(is_front=False)
    stream.is_front = is_front


def _check_not_front(stream: Stream, action: str) -> None:
    if stream == front():
        words = f"is the front stream and cannot be {action}: choose another front stream first"
        raise Problem(409, f"{stream.name} {words}")


def _check_removable(stream: Stream, action: str) -> None:
    if stream.name in OPERATORS_OWN:
        raise Problem(409, f"{stream.name} cannot be {action}: uploads and schedules rely on its name")
    _check_not_front(stream, action)
    if Import.objects.filter(stream=stream, finished=None).exists():
        raise Problem(409, f"uploads to {stream.name} are being imported: wait until they have ended")


def _check_not_merged(stream: Stream, into: Stream | None = None) -> None:
    """Raise Problem 409 where a merge in the background has the stream, or takes away the one that it is to
    be merged into. Several may be merged into one."""
    goes = Q(arguments__stream__in=[one.pk for one in (stream, into) if one])
    waiting.check_none((goes | Q(arguments__into=stream.pk)) & Q(action="stream.merge"))


def _judge_again(stream_ids: Sequence[int]) -> None:
    """Mark all points of these streams for the judge."""
    touch(
        """
        SELECT s.id, min(p.order_time) AS first, max(p.order_time) AS last
        FROM hud_series s JOIN hud_point p ON p.series_id = s.id
        WHERE s.stream_id = ANY(%(streams)s) GROUP BY s.id
        """,
        {"streams": list(stream_ids)},
    )
    judge_again()
