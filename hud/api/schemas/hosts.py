"""Hosts, their queue, and what they send."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import orjson
from ninja import Schema
from pydantic import ConfigDict, Field, field_validator

from hud.api.schemas.base import Labels, StrictBody

MAX_FACTS_BYTES = 1024 * 1024  # about 15 kB for each interpreter of a host


class DrainIn(StrictBody):
    note: str = Field("", max_length=500)


class PauseIn(StrictBody):
    minutes: int = Field(ge=1, le=30 * 24 * 60)
    note: str = Field("", max_length=500)


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


class HostsOut(Schema):
    items: list[HostOut]


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


class QueueOut(Schema):
    items: list[QueuedOut]
    more: int


class TokenOut(Schema):
    token: str
    expires_in_s: float
    command: str


class HostBody(Schema):
    """A body that hosts write; a newer host may send further keys."""

    model_config = ConfigDict(strict=True)


class DeviceIn(HostBody):
    name: str = Field(max_length=40, pattern=r"^(cpu|cuda:[0-9]{1,3})$")
    device: str = Field(max_length=20)
    device_name: str = Field("", max_length=200)
    arch: str = Field("", max_length=60)
    uuid: str = Field("", max_length=80)
    unavailable_reason: str = Field("", max_length=300, alias="dirty")
    suites: list[Annotated[str, Field(max_length=60)]] = Field([], max_length=50)
    pythons: list[Annotated[str, Field(max_length=60)]] = Field([], max_length=50)


class BeatIn(HostBody):
    protocol: int
    sent_at: float
    facts: dict[str, Any] = Field({}, description=f"at most {MAX_FACTS_BYTES} bytes as JSON")
    labels: Labels = Field({}, max_length=64)
    devices: list[DeviceIn] = Field(max_length=64)

    @field_validator("facts")
    @classmethod
    def _limit_facts(cls, facts: dict[str, Any]) -> dict[str, Any]:
        if len(orjson.dumps(facts)) > MAX_FACTS_BYTES:
            raise ValueError(f"the facts are over {MAX_FACTS_BYTES} bytes as JSON")
        return facts


class RegisterIn(HostBody):
    token: str = Field(max_length=200)
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


class ClaimIn(HostBody):
    protocol: int
    accelerator: int = Field(ge=1, le=2**31 - 1)
    nonce: str = Field(min_length=1, max_length=64)


class ProgressIn(HostBody):
    phase: str = Field("", max_length=40)
    done: int = Field(0, ge=0, le=10**9)
    total: int = Field(0, ge=0, le=10**9)
    label: str = Field("", max_length=200)


class FinishIn(HostBody):
    status: str = Field(max_length=20)
    code: str = Field("", max_length=2000)
    reason: str = Field("", max_length=20000)
    seconds: float = 0.0
