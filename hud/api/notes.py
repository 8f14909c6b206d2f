"""Annotations over the API: people's and programs' notes on commits and times."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status
from ninja.schema import Schema
from pydantic import ConfigDict, Field

from hud.api.auth import who
from hud.api.schemas import SHOWN, Error, Filter, Items
from hud.models import Annotation, Experiment
from hud.pages.experiment import notes
from hud.problems import Problem, row_of
from runner.formats.errors import Fault

router = Router(tags=["annotations"])
_MOST = 500


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


@router.get("/annotations", response={200: Items[AnnotationOut], 404: Error})
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
    return {"items": notes.COLUMNS.rows(found[:_MOST])}


@router.post("/annotations", response={201: AnnotationOut, 404: Error})
def post_annotation(request: HttpRequest, given: AnnotationIn) -> Any:
    """Add a note at a `commit` or a `date`: of an `experiment`, of a `suite`, or without either of
    everything."""
    if given.suite and given.experiment:
        raise Problem(422, "a note is of an experiment or of a suite", errors=[Fault("/suite", "remove it")])
    experiment = row_of(Experiment, given.experiment) if given.experiment else None
    note = Annotation(experiment=experiment)
    form = notes.NoteForm(given.model_dump(exclude={"experiment"}), instance=note)
    if not form.is_valid():
        faults = [Fault(f"/{name}", " ".join(map(str, errors))) for name, errors in form.errors.items()]
        raise Problem(422, f"{faults[0].pointer[1:]}: {faults[0].detail}", errors=faults)
    form.store(who(request))
    note.refresh_from_db()
    return Status(201, notes.COLUMNS.row(note))


@router.delete("/annotations/{int:annotation_id}", response={204: None})
def delete_annotation(request: HttpRequest, annotation_id: int) -> HttpResponse:
    notes.delete(row_of(Annotation, annotation_id), who=who(request))
    return HttpResponse(status=204)
