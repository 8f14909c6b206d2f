"""Schedules over the API: readers list them, admins create and change them."""

from datetime import datetime
from typing import Annotated, Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from ninja import Router, Status
from pydantic import ConfigDict, Field

from hud.api.auth import who
from hud.api.schemas import Items, Labels, StreamName, StrictBody
from hud.models import Schedule
from hud.pages.hosts import schedules as query
from hud.problems import Problem, row_of
from hud.runs import schedules, streams
from runner.formats.errors import Fault
from runner.schema.suite import MAX_COMPILATIONS

router = Router(tags=["schedules"])


class ScheduleIn(StrictBody):
    name: str = Field(min_length=1, max_length=100)
    cron: str = Field(max_length=100)
    time_zone: str = Field("UTC", max_length=60)
    suite: str = Field(max_length=60)
    cases: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=500)
    modes: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=20)
    dtypes: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=20)
    backends: list[Annotated[str, Field(max_length=100)]] = Field([], max_length=20)
    compilations: int | None = Field(None, ge=1, le=MAX_COMPILATIONS)
    repeats: int = Field(1, ge=1, le=20)
    device: str = Field("", max_length=40)
    environment: str = Field("", max_length=60)
    labels: Labels = Field({}, max_length=64)
    everywhere: bool = False
    stream: StreamName = ""  # of its runs; '' is nightly
    enabled: bool = True


class ScheduleOut(ScheduleIn):
    model_config = ConfigDict(extra="ignore", strict=False)
    id: int
    next_due: datetime | None
    last_due: datetime | None
    last_runs: list[int]
    last_reason: str


@router.get("/schedules", response=Items[ScheduleOut])
def get_schedules(request: HttpRequest) -> dict[str, Any]:
    """List schedules by name, with their next and last due times."""
    return {"items": query.COLUMNS.rows(query.read())}


@router.post("/schedules", response={201: ScheduleOut})
def post_schedule(request: HttpRequest, given: ScheduleIn) -> Status[dict[str, Any]]:
    """Create a schedule: a cron expression (minute, hour, day of month, month, day of week), a suite with
    filters, an environment, and the labels that an accelerator must have."""
    return Status(201, _store(request, Schedule(), given))


@router.put("/schedules/{int:schedule_id}", response=ScheduleOut)
def put_schedule(request: HttpRequest, schedule_id: int, given: ScheduleIn) -> dict[str, Any]:
    """Replace all settings of a schedule; `enabled` switches it on and off."""
    return _store(request, row_of(Schedule, schedule_id), given)


@router.delete("/schedules/{int:schedule_id}", response={204: None})
def delete_schedule(request: HttpRequest, schedule_id: int) -> Status[None]:
    """Delete a schedule; its runs stay."""
    schedules.delete(schedule=row_of(Schedule, schedule_id), who=who(request))
    return Status(204, None)


def _store(request: HttpRequest, schedule: Schedule, given: ScheduleIn) -> dict[str, Any]:
    """Store a schedule with these settings. Raise Problem."""
    schedule.stream = streams.find_or_make(given.stream, is_operator=True) if given.stream else None
    for name, value in given.model_dump(exclude={"stream"}).items():
        setattr(schedule, name, value)
    try:
        schedules.save(schedule, who=who(request))
    except ValidationError as error:
        faults = [Fault(f"/{name}", text) for name, texts in error.message_dict.items() for text in texts]
        raise Problem(422, "this schedule could never fire", errors=faults) from error
    return next(query.COLUMNS.row(line) for line in query.read() if line.schedule.pk == schedule.pk)
