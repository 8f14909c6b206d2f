"""Hosts over the API: list them, create a token, drain, pause, resume, detach."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema, Status
from pydantic import Field

from hud.api.auth import who
from hud.api.schemas import Items, StrictBody
from hud.hosts import registration
from hud.models import Host, Task
from hud.pages.hosts import queue
from hud.problems import row_of
from hud.runs.tasks import detach_host
from hud.tables.table import DataTable

router = Router(tags=["hosts"])
_HOST = DataTable("id=pk name last_beat clock_skew_s labels facts")
_ACCELERATOR = DataTable(
    "id=pk name device device_name arch uuid present dirty=unavailable_reason suites environments",
    suites=lambda one: one.catalog.get("suites", []),
    environments=lambda one: one.catalog.get("pythons", []),
)


class AcceleratorOut(Schema):
    id: int
    name: str
    device: str
    device_name: str
    arch: str
    uuid: str
    present: bool
    dirty: str
    suites: list[str]
    environments: list[str]
    run: int | None


class HostOut(Schema):
    id: int
    name: str
    state: str
    note: str
    paused_until: datetime | None
    last_beat: datetime | None
    clock_skew_s: float | None
    labels: dict[str, str]
    facts: dict[str, Any]
    accelerators: list[AcceleratorOut]


@router.get("/hosts", response=Items[HostOut])
def get_hosts(request: HttpRequest) -> dict[str, Any]:
    """List attached hosts by name, silent ones for two weeks."""
    found = registration.visible_hosts().prefetch_related("accelerators").order_by("name")
    running = _running()
    return {"items": [_host_out(host, running) for host in found]}


class QueuedOut(Schema):
    run: int
    title: str
    state: str
    position: int | None
    starts_in_s: float | None
    wants: str
    hindrance: str
    requested_by: str
    watched: bool
    tasks: int
    done: int


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
    return _do(host_id, lambda host: registration.drain(host=host, note=given.note, who=who(request)))


@router.post("/hosts/{int:host_id}/pause", response=HostOut)
def pause(request: HttpRequest, host_id: int, given: PauseIn) -> dict[str, Any]:
    """Drain a host for some minutes."""
    until = timezone.now() + timedelta(minutes=given.minutes)
    return _do(
        host_id, lambda host: registration.pause(host=host, until=until, note=given.note, who=who(request))
    )


@router.post("/hosts/{int:host_id}/resume", response=HostOut)
def resume(request: HttpRequest, host_id: int) -> dict[str, Any]:
    """Let a host take work again."""
    return _do(host_id, lambda host: registration.resume(host=host, who=who(request)))


@router.post("/hosts/{int:host_id}/detach", response=HostOut)
def detach(request: HttpRequest, host_id: int) -> dict[str, Any]:
    """Detach a host: revoke its keys and cancel the runs requested for it."""
    return _do(host_id, lambda host: detach_host(host=host, who=who(request)))


def _do(host_id: int, act: Callable[[Host], None]) -> dict[str, Any]:
    host = row_of(Host, host_id)
    act(host)
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
