"""Experiments, exports and annotations over the API."""

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Query, Router, Status
from ninja.schema import Schema
from pydantic import ConfigDict, Field

from hud.api.auth import who
from hud.api.cursors import IdCursorFrom0, cursor_to
from hud.api.schemas import SHOWN, Error, ExperimentsFilter, Filter, Items, file_answer, of_table
from hud.corrections import notes
from hud.ingest.export import FORMATS, export, export_wide
from hud.models import Annotation, Experiment, Series, Stream
from hud.points import streams
from hud.problems import Problem, row_of
from hud.tables.table import IDENTITY, DataTable
from runner.formats.errors import Fault

router = Router(tags=["reading"])
_MOST_NOTES = 500
_COLUMNS = DataTable("id:int=pk", *IDENTITY.columns[1:])
_EXPORTS = threading.BoundedSemaphore(2)  # at once in a process, since a slow reader holds a thread


class _ExperimentsQuery(ExperimentsFilter):
    cursor: IdCursorFrom0 = ""
    limit: int = Field(200, ge=1, le=1000)


@of_table(_COLUMNS)
class ExperimentOut(Schema):
    """An experiment."""


class ExperimentsOut(Items[ExperimentOut]):
    next: str | None


@router.get("/experiments", response={200: ExperimentsOut, 404: Error})
def get_experiments(request: HttpRequest, given: Query[_ExperimentsQuery]) -> dict[str, Any]:
    """List experiments by id, by default of all streams; `next` is the cursor of the next page."""
    fields = given.model_dump(exclude={"stream", "cursor", "limit"})
    wanted: dict[str, Any] = {name: value for name, value in fields.items() if value}
    if given.stream:
        wanted["pk__in"] = Series.objects.filter(stream=stream_of(given.stream)).values("experiment")
    after = Experiment.objects.filter(pk__gt=given.cursor or 0, **wanted)
    found = list(after.order_by("pk")[: given.limit + 1])
    page = found[: given.limit]
    return {
        "items": [_COLUMNS.row(item) for item in page],
        "next": cursor_to(page[-1].pk) if len(found) > given.limit else None,
    }


def stream_of(name: str) -> Stream:
    """Return the stream of this name, by default the front stream. Raise Problem 404."""
    stream = streams.chosen(name)
    if stream is None:
        raise Problem(404, f"no stream is called {name!r}")
    return stream


class _ExportQuery(ExperimentsFilter):
    format: Literal["v3", "json", "csv", "parquet"] = "v3"
    layout: Literal["long", "wide"] = "long"
    metric: str = Field("", max_length=200)
    commit: str = Field("", max_length=64)
    branch: str = Field("", max_length=200)
    source: str = Field("", max_length=100)
    host: str = Field("", max_length=200)
    run: int | None = Field(None, ge=1, le=2**31 - 1)
    experiment: int | None = Field(None, ge=1, le=2**31 - 1)


def _holding(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield nothing, then the pieces of an export. When it ends, or Django closes it, the next may start."""
    try:
        yield b""
        yield from pieces
    finally:
        _EXPORTS.release()


@router.get(
    "/export",
    response={404: Error},
    openapi_extra=file_answer(
        "v3 records as JSON lines (they can be uploaded again), or flat rows", *FORMATS.values()
    ),
)
def get_export(request: HttpRequest, given: Query[_ExportQuery]) -> StreamingHttpResponse:
    """Stream every measurement that matches the filters. `layout=wide`, for `format=csv` and one `suite`: a
    line for each experiment of a run, a column for the value of each metric."""
    wide = given.layout == "wide"
    if wide and given.format != "csv":
        raise Problem(422, "layout=wide is a CSV", at="?format")
    if wide and not given.suite:
        raise Problem(422, "layout=wide is of one suite", at="?suite")
    filters = {name: value for name, value in given.model_dump(exclude={"format", "layout"}).items() if value}
    if given.stream:
        filters["stream"] = stream_of(given.stream).name
    suffix = "jsonl" if given.format == "v3" else given.format
    pieces = export_wide(filters) if wide else export(given.format, filters)
    if not _EXPORTS.acquire(blocking=False):
        raise Problem(503, "other exports are running; try again", retry_after_s=5)
    held = _holding(pieces)
    next(held)  # what has not begun ends without its `finally`
    response = StreamingHttpResponse(held, content_type=FORMATS[given.format])
    response["Content-Disposition"] = f'attachment; filename="compiler-hud.{suffix}"'
    return response


class _AnnotationsQuery(Filter):
    suite: str = Field("", max_length=60)
    experiment: int | None = Field(None, ge=1, le=2**31 - 1)
    commit: str = Field("", max_length=64)


class AnnotationIn(Schema):
    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=300)
    link: str = Field("", max_length=300)
    commit: str = Field("", max_length=64)
    date: datetime | None = None
    suite: str = Field("", max_length=60)
    experiment: int | None = Field(None, ge=1, le=2**31 - 1)


class AnnotationOut(AnnotationIn):
    model_config = SHOWN
    id: int
    scope: Literal["experiment", "suite", "all"]
    author: str
    created: datetime


@router.get("/annotations", response={200: Items[AnnotationOut], 404: Error}, tags=["annotations"])
def get_annotations(request: HttpRequest, given: Query[_AnnotationsQuery]) -> dict[str, Any]:
    """List notes, the newest first, at most 500: all, or those that concern an experiment, are of a suite, or
    stand at a commit."""
    found = Annotation.objects.order_by("-created", "-pk")
    if given.experiment:
        found = notes.of_experiment(row_of(Experiment, given.experiment))
    if given.suite:
        found = found.filter(suite=given.suite)
    if given.commit:
        found = found.filter(commit=given.commit)
    return {"items": notes.COLUMNS.rows(found[:_MOST_NOTES])}


@router.post("/annotations", response={201: AnnotationOut, 404: Error}, tags=["annotations"])
def post_annotation(request: HttpRequest, given: AnnotationIn) -> Any:
    """Add a note at a `commit` or a `date`: of an `experiment`, of a `suite`, or without either of
    everything."""
    if given.suite and given.experiment:
        raise Problem(422, "a note is of an experiment or of a suite", at="/suite")
    experiment = row_of(Experiment, given.experiment) if given.experiment else None
    note = Annotation(experiment=experiment)
    form = notes.NoteForm(given.model_dump(exclude={"experiment"}), instance=note)
    if not form.is_valid():
        faults = [Fault(f"/{name}", " ".join(map(str, errors))) for name, errors in form.errors.items()]
        raise Problem(422, f"{faults[0].pointer[1:]}: {faults[0].detail}", errors=faults)
    form.store(who(request))
    note.refresh_from_db()
    return Status(201, notes.COLUMNS.row(note))


@router.delete("/annotations/{int:annotation_id}", response={204: None}, tags=["annotations"])
def delete_annotation(request: HttpRequest, annotation_id: int) -> HttpResponse:
    notes.delete(row_of(Annotation, annotation_id), who=who(request))
    return HttpResponse(status=204)
