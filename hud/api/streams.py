"""Streams over the API: readers list them, operators change them."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.auth import who
from hud.api.schemas import Error, Items, StrictBody
from hud.ingest.streams import StreamChanges, change
from hud.models.streams import NAME_PATTERN
from hud.pages.stream_list import query
from hud.points.nights import Subject
from hud.points.streams import measured_by, subjects
from hud.problems import Problem
from hud.runs import streams

router = Router(tags=["streams"])


class StreamIn(StrictBody):
    """A change of a stream: a field that is left out stays, a null or empty `reference` is cleared."""

    name: str | None = Field(None, pattern=f"^{NAME_PATTERN}$")
    title: str | None = Field(None, max_length=200)
    reference: str | None = Field(None, max_length=60)
    front: bool | None = None
    archived: bool | None = None


class NightOut(Schema):
    night: str = Field(description="as the side of a comparison names it")
    time: datetime
    commit: str
    complete: bool


class StreamOut(Schema):
    name: str
    title: str
    aliases: list[str] = Field(description="its earlier names, and those of streams that were merged into it")
    owner: str
    reference: str
    front: bool
    archived: bool
    created: datetime
    newest: datetime | None
    experiments: int
    series: int
    runs: int
    newest_night: NightOut | None
    subjects: list[Subject]


@router.get("/streams", response=Items[StreamOut])
def get_streams(request: HttpRequest) -> dict[str, Any]:
    """List all streams, those with the newest results first, with their newest night and what it measured."""
    return {"items": [_out(line) for line in query.read()]}


@router.put("/streams/{name}", response={200: StreamOut, 409: Error})
def put_stream(request: HttpRequest, name: str, given: StreamIn) -> dict[str, Any]:
    """Change a stream. Its old name goes on as an alias. The front stream cannot be archived."""
    stream = streams.named(name).first()
    if stream is None:
        raise Problem(404, f"no stream is called {name[:60]}")
    settings = given.model_dump()
    if "reference" in given.model_fields_set:
        settings["reference"] = given.reference or ""
    changed = change(stream, StreamChanges(**settings), who=who(request))
    return next(_out(line) for line in query.read() if line.stream == changed)


def _out(line: query.StreamLine) -> dict[str, Any]:
    night = line.night
    return {
        **query.COLUMNS.row(line),
        "newest_night": night
        and {"night": night.side, "time": night.time, "commit": night.commit, "complete": night.complete},
        "subjects": subjects(line.nights, measured_by(line.stream)),
    }
