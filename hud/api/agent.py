"""The protocol between a host and the HUD: register, heartbeat, claim, report, deliver, finish.

A host's key permits these calls and no others, and only for the host's own tasks. Every call may be repeated.
"""

import uuid
from typing import Annotated, Any

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Schema, Status
from pydantic import BaseModel, ConfigDict, Field, field_validator

from hud.accounts.access import address_of
from hud.accounts.limits import HOST_BYTES, KEYS
from hud.api.auth import caller_key, host_of
from hud.api.results import ReceiptOut, body_of, bytes_of
from hud.api.schemas import RECORD, Error, Labels, file_answer, parameter, raw_body
from hud.hosts import redis_users, registration
from hud.ingest import deliveries
from hud.judging.comparison import end_if_clear
from hud.models import Accelerator
from hud.problems import Problem
from hud.runs import logs, overlays, tasks
from hud.tables.table import DataTable
from runner.schema.protocol import Fingerprint, overlay_of
from runner.schema.suite import BadRequest

router = Router(tags=["hosts"])
MAX_FACTS_BYTES = 1024 * 1024  # about 15 kB for each interpreter of a host
_LEASE = {"parameters": [parameter("header", "X-Task-Token", "the token of the task's claim", format="uuid")]}
_TASK = DataTable(
    """task=uid token spec attempt run=run_id python=run.interpreter base_python=run.base_interpreter
    process=repeat caches new_options=run.request.candidate_options"""
)
_Offset = Annotated[int, Query(..., ge=0, lt=2**62)]
_BYTES: dict[str, Any] = {"application/octet-stream": {}}


class HostBody(Schema):
    """A body that hosts write; a newer host may send further keys."""

    model_config = ConfigDict(strict=True)


class RegisterIn(HostBody):
    token: str = Field(max_length=200)
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


@router.post("/hosts/register", auth=None, response={201: dict[str, Any], (403, 429): Error})
def register(request: HttpRequest, given: RegisterIn) -> Status[dict[str, Any]]:
    """Exchange a one-time registration token for the host's own key."""
    try:
        host, secret = registration.register(token=given.token, name=given.name)
    except Problem:
        KEYS.check(address_of(request))
        raise
    redis_users.sync()
    host.refresh_from_db()
    redis_url = redis_users.url_of(host)
    return Status(201, {"host": host.pk, "name": host.name, "key": secret, "redis_url": redis_url})


class DeviceIn(HostBody):
    name: str = Field(max_length=40, pattern=r"^(cpu|cuda:[0-9]{1,3})$")
    device: str = Field(max_length=20)
    device_name: str = Field("", max_length=200)
    arch: str = Field("", max_length=60)
    uuid: str = Field("", max_length=80)
    unavailable_reason: str = Field("", max_length=300, alias="dirty")
    suites: list[Annotated[str, Field(max_length=60)]] = Field([], max_length=50)
    pythons: list[Annotated[str, Field(max_length=60)]] = Field([], max_length=50)


class HostFacts(BaseModel):
    """The facts of a host whose form pages rely on, beside others, which are stored as they come."""

    model_config = ConfigDict(strict=True, extra="allow")
    memory_bytes: int | None = None
    gpus: list[dict[str, Any]] = []
    gpu_limits: list[dict[str, str]] = []
    gpu_errors: dict[str, int] = {}
    pythons: dict[str, dict[str, Any]] = {}
    ceilings: dict[str, dict[str, dict[str, Any]]] = {}
    lacking: dict[str, str] = {}


class BeatIn(HostBody):
    protocol: int
    sent_at: float
    facts: HostFacts = Field(HostFacts(), description=f"at most {MAX_FACTS_BYTES} bytes as JSON")
    labels: Labels = Field({}, max_length=64)
    devices: list[DeviceIn] = Field(max_length=64)

    @field_validator("facts", mode="before")
    @classmethod
    def _limit_facts(cls, facts: Any) -> Any:
        if len(orjson.dumps(facts)) > MAX_FACTS_BYTES:
            raise ValueError(f"the facts are over {MAX_FACTS_BYTES} bytes as JSON")
        return facts


@router.post("/hosts/beat", response={200: dict[str, Any], 409: Error})
def beat(request: HttpRequest, given: BeatIn) -> dict[str, Any]:
    """Send a heartbeat with the host's facts and devices."""
    host = host_of(request)
    accelerators = registration.beat(
        host=host,
        **given.model_dump(exclude={"facts", "devices"}),
        facts=given.facts.model_dump(exclude_unset=True),
        devices=[
            Accelerator(
                **device.model_dump(exclude={"suites", "pythons"}),
                catalog=device.model_dump(include={"suites", "pythons"}),
            )
            for device in given.devices
        ],
    )
    host.refresh_from_db()
    if host.redis_user is None:  # it has registered without a call, as the embedded one does
        redis_users.sync()
    state = registration.state_of(host, timezone.now())
    return {
        "host": host.pk,
        "state": state,
        "note": registration.note_of(host, state),
        "accelerators": {name: item.pk for name, item in accelerators.items()},
        "queues": {name: item.queue for name, item in accelerators.items()},
        "redis_url": redis_users.url_of(host),
        "beat_s": settings.HUD_BEAT_S,
    }


class FingerprintIn(HostBody):
    torch: str = Field("", max_length=200)
    torch_git: str = Field("", max_length=64)
    triton: str = Field("", max_length=200)
    packages: str = Field("", max_length=64)


class ClaimIn(HostBody):
    protocol: int
    accelerator: int = Field(ge=1, le=2**31 - 1)
    nonce: str = Field(min_length=1, max_length=64)
    fingerprints: dict[str, FingerprintIn] = Field({}, max_length=50, description="of interpreters by name")


@router.post("/tasks/claim", response={200: dict[str, Any], 204: None, (404, 409): Error})
def claim(request: HttpRequest, given: ClaimIn) -> Any:
    """Get the next task for an accelerator, or 204. A task whose run began with another fingerprint of its
    interpreter ends as failed."""
    host = host_of(request)
    registration.check_protocol(given.protocol)
    accelerator = Accelerator.objects.select_related("host").filter(pk=given.accelerator, host=host).first()
    if accelerator is None:
        raise Problem(404, "no such accelerator of this host")
    fingerprints = {name: Fingerprint(**one.model_dump()) for name, one in given.fingerprints.items()}
    task = tasks.claim(accelerator=accelerator, nonce=given.nonce, fingerprints=fingerprints)
    if task is None:
        return HttpResponse(status=204)
    is_pinned = task.caches == "pinned"
    return {
        **_TASK.row(task),
        "pinned": task.run.request.pinned.get("choices", {}) if is_pinned else {},
        "rounds": task.run.request.selection.get("repeats", 1) if is_pinned else 1,
        "lease_s": settings.HUD_LEASE_S,
        "beat_s": settings.HUD_BEAT_S,
    }


def _lease(request: HttpRequest, uid: uuid.UUID) -> dict[str, Any]:
    """Return the task, token and host of a call as keyword arguments. Raise Problem 403 or 409."""
    try:
        token = uuid.UUID(request.headers.get("X-Task-Token", ""))
    except ValueError:
        raise Problem(409, "X-Task-Token is no lease", code="lease_broken") from None
    return {"uid": uid, "token": token, "host": host_of(request)}


class ProgressIn(HostBody):
    phase: str = Field("", max_length=40)
    done: int = Field(0, ge=0, le=10**9)
    total: int = Field(0, ge=0, le=10**9)
    label: str = Field("", max_length=200)


@router.post("/tasks/{uuid:uid}/progress", response={200: dict[str, Any], 409: Error}, openapi_extra=_LEASE)
def progress(request: HttpRequest, uid: uuid.UUID, given: ProgressIn) -> dict[str, Any]:
    """Extend the lease; the answer says whether to stop."""
    task = tasks.leased_task(**_lease(request, uid))
    return {"cancel": tasks.report(task=task, progress=given.model_dump())}


@router.put(
    "/tasks/{uuid:uid}/results",
    response={200: ReceiptOut, 409: Error},
    openapi_extra=_LEASE | raw_body("v3 records, one a line", {"application/x-ndjson": RECORD, **_BYTES}),
)
def results(request: HttpRequest, uid: uuid.UUID) -> dict[str, Any]:
    """Deliver v3 records of the task; records of anything else are skipped, with the reason."""
    body = body_of(request, deliveries.MAX_BYTES)
    return deliveries.take_results(**_lease(request, uid), body=body).to_json()


@router.put(
    "/tasks/{uuid:uid}/log",
    response={200: dict[str, Any], (409, 507): Error},
    openapi_extra=_LEASE | raw_body("bytes of the log", _BYTES),
)
def log(request: HttpRequest, uid: uuid.UUID, offset: _Offset) -> dict[str, Any]:
    """Append a piece of the log at its offset."""
    lease, data = _lease(request, uid), bytes_of(request, settings.HUD_MAX_BODY_BYTES)
    HOST_BYTES.check(caller_key(request).pk, len(data))
    return {"size": logs.append(**lease, offset=offset, data=data)}


@router.put(
    "/tasks/{uuid:uid}/artifacts/{kind}",
    response={201: dict[str, Any], (409, 507): Error},
    openapi_extra=_LEASE | raw_body("the file", _BYTES),
)
def artifact(request: HttpRequest, uid: uuid.UUID, kind: str) -> Status[dict[str, Any]]:
    """Store a file that the task left behind. `kernel_code` is taken apart instead, and has no id."""
    lease, data = _lease(request, uid), bytes_of(request, settings.HUD_MAX_ARTIFACT_BYTES)
    HOST_BYTES.check(caller_key(request).pk, len(data))
    if kind == deliveries.KERNEL_CODE:
        return Status(201, {"kernels": deliveries.take_kernel_code(**lease, data=data)})
    kept = logs.keep_artifact(**lease, kind=kind, data=data, sha256=request.headers.get("X-Sha256", ""))
    return Status(201, {"id": kept.pk, "sha256": kept.sha256})


@router.get(
    "/tasks/{uuid:uid}/overlay/{commit}",
    response={409: Error},
    openapi_extra=_LEASE | file_answer("a tar of Python files", "application/gzip"),
)
def overlay(request: HttpRequest, uid: uuid.UUID, commit: str) -> HttpResponse:
    """Get the files of an overlay of the task's run."""
    run = tasks.leased_task(**_lease(request, uid)).run
    if commit not in {overlay_of(name)[1] for name in (run.interpreter, run.base_interpreter)} - {""}:
        raise Problem(404, "no such overlay of this task")
    try:
        return HttpResponse(overlays.archive_of(run, commit), content_type="application/gzip")
    except BadRequest as error:
        raise Problem(404, str(error)) from error


class FinishIn(HostBody):
    status: str = Field(max_length=20)
    code: str = Field("", max_length=2000)
    reason: str = Field("", max_length=20000)
    seconds: float = 0.0


@router.post("/tasks/{uuid:uid}/finish", response={200: dict[str, Any], 409: Error}, openapi_extra=_LEASE)
def finish(request: HttpRequest, uid: uuid.UUID, given: FinishIn) -> dict[str, Any]:
    """End the task."""
    try:
        task = tasks.finish(**_lease(request, uid), status=given.status, code=given.code, reason=given.reason)
    except ValueError as error:
        raise Problem(422, str(error)) from error
    end_if_clear(task.run)  # before its host claims the next
    return {"state": task.state}
