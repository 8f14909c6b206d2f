"""Hosts and schedules over the API: attach, list, drain, pause, resume and detach hosts; plan runs."""

from datetime import datetime
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema, Status
from pydantic import ConfigDict, Field

from hud.api.auth import caller_key, who
from hud.api.schemas import Items, MatrixBody, StrictBody, of_table
from hud.hosts import registration
from hud.models import Accelerator, Host, Schedule, Task
from hud.problems import Problem, row_of
from hud.runs import queue, schedules, streams
from hud.runs.tasks import detach_host
from hud.tables.table import DataTable
from runner.formats.errors import Fault

router = Router(tags=["hosts"])
_HOST = DataTable[Host]("""id:int=pk name:str last_beat:datetime|None clock_skew_s:float|None
    labels:dict[str,str] facts:dict[str,Any]""")
_ACCELERATOR = DataTable[Accelerator](
    """id:int=pk name:str device:str device_name:str arch:str uuid:str present:bool
    dirty:str=hindrance suites:list[str] environments:list[str]""",
    suites=lambda one: one.catalog.get("suites", []),
    environments=lambda one: one.catalog.get("pythons", []),
)
_QUEUED = DataTable[queue.QueueLine](
    """run:int title:str state:str position:int|None starts_in_s:float|None wants:str hindrance:str
    requested_by:str watched:bool tasks:int done:int"""
)


@of_table(_ACCELERATOR)
class AcceleratorOut(Schema):
    run: int | None


@of_table(_HOST)
class HostOut(Schema):
    state: str
    note: str
    paused_until: datetime | None
    accelerators: list[AcceleratorOut]


@router.get("/hosts", response=Items[HostOut])
def get_hosts(request: HttpRequest) -> dict[str, Any]:
    """List attached hosts by name, silent ones for two weeks."""
    found = registration.visible_hosts().prefetch_related("accelerators").order_by("name")
    running = _running()
    return {"items": [_host_out(host, running) for host in found]}


@of_table(_QUEUED)
class QueuedOut(Schema):
    """A run of the queue."""


class QueueOut(Items[QueuedOut]):
    more: int


@router.get("/queue", response=QueueOut)
def get_queue(request: HttpRequest) -> dict[str, Any]:
    """List running and queued runs in the order of service, with estimated starts."""
    found = queue.read()
    return {"items": found.lines, "more": found.more}


class TokenOut(Schema):
    token: str
    expires_in_s: float
    command: str


@router.post("/hosts/tokens", response={201: TokenOut})
def post_token(request: HttpRequest) -> Status[dict[str, Any]]:
    """Create a registration token, which works once within an hour and is shown only now."""
    token = registration.create_token(who=who(request))
    command = f"python -m runner attach --hud {request.build_absolute_uri('/').rstrip('/')} --token {token}"
    answer = {"token": token, "expires_in_s": registration.TOKEN_LIFE.total_seconds(), "command": command}
    return Status(201, answer)


class DrainIn(StrictBody):
    note: str = Field("", max_length=500)


class PauseIn(DrainIn):
    minutes: int = Field(ge=1, le=30 * 24 * 60)


@router.post("/hosts/{int:host_id}/drain", response=HostOut)
def drain(request: HttpRequest, host_id: int, given: DrainIn) -> dict[str, Any]:
    """Let a host finish its running tasks and take no more."""
    return _control(request, host_id, "drain", note=given.note)


@router.post("/hosts/{int:host_id}/pause", response=HostOut)
def pause(request: HttpRequest, host_id: int, given: PauseIn) -> dict[str, Any]:
    """Drain a host for some minutes."""
    return _control(request, host_id, "pause", note=given.note, minutes=given.minutes)


@router.post("/hosts/{int:host_id}/resume", response=HostOut)
def resume(request: HttpRequest, host_id: int) -> dict[str, Any]:
    """Let a host take work again."""
    return _control(request, host_id, "resume")


@router.post("/hosts/{int:host_id}/detach", response=HostOut)
def detach(request: HttpRequest, host_id: int) -> dict[str, Any]:
    """Detach a host: revoke its keys and cancel the runs requested for it."""
    return _control(request, host_id, "detach")


def _control(request: HttpRequest, host_id: int, action: str, **settings: Any) -> dict[str, Any]:
    host = row_of(Host, host_id)
    act = detach_host if action == "detach" else partial(registration.control, action)
    act(host=host, who=who(request), **settings)
    host.refresh_from_db()
    return _host_out(host, _running())


def _running() -> dict[int | None, int]:
    """Return the id of the running run by accelerator."""
    return dict(Task.objects.filter(state="running").values_list("accelerator_id", "run_id"))


def _host_out(host: Host, running: dict[int | None, int]) -> dict[str, Any]:
    state = registration.state_of(host, timezone.now())
    return {
        **_HOST.row(host),
        "state": state,
        "note": registration.note_of(host, state),
        "paused_until": host.paused_until if state == "paused" else None,
        "accelerators": [
            {**_ACCELERATOR.row(item), "run": running.get(item.pk)}
            for item in sorted(host.accelerators.all(), key=lambda item: item.name)
        ],
    }


class ScheduleIn(MatrixBody):  # without a `stream` its runs are in `nightly`
    name: str = Field(min_length=1, max_length=100)
    cron: str = Field(max_length=100)
    time_zone: str = Field("UTC", max_length=60)
    preset: str = Field("", max_length=60, description="what it measures; `suite` and lists go first")
    suite: str = Field("", max_length=60)
    repeats: int = Field(1, ge=1, le=20)
    device: str = Field("", max_length=40)
    everywhere: bool = False
    enabled: bool = True


class ScheduleOut(ScheduleIn):
    model_config = ConfigDict(extra="ignore", strict=False)
    id: int
    next_due: datetime | None
    last_due: datetime | None
    last_runs: list[int]
    last_reason: str


@router.get("/schedules", response=Items[ScheduleOut], tags=["schedules"])
def get_schedules(request: HttpRequest) -> dict[str, Any]:
    """List schedules by name, with their next and last due times."""
    return {"items": schedules.COLUMNS.rows(schedules.read())}


@router.post("/schedules", response={201: ScheduleOut}, tags=["schedules"])
def post_schedule(request: HttpRequest, given: ScheduleIn) -> Status[dict[str, Any]]:
    """Create a schedule: a cron expression (minute, hour, day of month, month, day of week), a suite with
    filters, an environment, and the labels that an accelerator must have."""
    return Status(201, _store(request, Schedule(), given))


@router.put("/schedules/{int:schedule_id}", response=ScheduleOut, tags=["schedules"])
def put_schedule(request: HttpRequest, schedule_id: int, given: ScheduleIn) -> dict[str, Any]:
    """Replace all settings of a schedule; `enabled` switches it on and off."""
    return _store(request, row_of(Schedule, schedule_id), given)


@router.delete("/schedules/{int:schedule_id}", response={204: None}, tags=["schedules"])
def delete_schedule(request: HttpRequest, schedule_id: int) -> Status[None]:
    """Delete a schedule; its runs stay."""
    schedules.delete(schedule=row_of(Schedule, schedule_id), who=who(request))
    return Status(204, None)


def _store(request: HttpRequest, schedule: Schedule, given: ScheduleIn) -> dict[str, Any]:
    """Store a schedule with these settings. Raise Problem."""
    schedule.stream = streams.for_upload(given.stream, caller_key(request)) if given.stream else None
    for name, value in given.model_dump(exclude={"stream"}).items():
        setattr(schedule, name, value)
    try:
        schedules.save(schedule, who=who(request))
    except ValidationError as error:
        faults = [Fault(f"/{name}", text) for name, texts in error.message_dict.items() for text in texts]
        raise Problem(422, "this schedule could never fire", errors=faults) from error
    return next(schedules.COLUMNS.row(line) for line in schedules.read() if line.schedule.pk == schedule.pk)
