"""Runs, their artifacts and deletion, and schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from ninja import Schema
from pydantic import ConfigDict, Field

from hud.api.schemas.base import Labels, StreamName, StrictBody
from runner.schema.plan import Caches
from runner.schema.suite import MAX_COMPILATIONS


class RunIn(StrictBody):
    experiment: int | None = Field(None, ge=1, le=2**31 - 1)
    suite: str = Field("", max_length=60)
    cases: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=500)
    host: str = Field("", max_length=100)
    arch: str = Field("", max_length=100)
    device: str = Field("", max_length=20)
    labels: Labels = Field({}, max_length=64)
    environment: str = Field("", max_length=60)
    base_environment: str = Field("", max_length=60)
    new_options: dict[
        Annotated[str, Field(max_length=100)], bool | int | float | Annotated[str, Field(max_length=100)]
    ] = Field({}, max_length=64)
    knobs: dict[str, bool | int | str | list[int] | None] | None = Field(None, max_length=64)
    compilations: int | None = Field(None, ge=1, le=MAX_COMPILATIONS)
    repeats: int | None = Field(None, ge=1, le=20)
    caches: Caches = "fresh"
    pinned: str = Field("", max_length=60)
    branch: str = Field("", max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")
    stream: StreamName = ""


class PlaceOut(Schema):
    """A reason why a host or an accelerator does not take a queued run now."""

    name: str
    state: str
    since: datetime | None
    until: datetime | None
    note: str
    run: int | None


class WaitingOut(Schema):
    position: int
    starts_in_s: float | None
    places: list[PlaceOut]
    lacking: str


class RunOut(Schema):
    id: int
    state: str
    stream: str
    reason: str
    done: int
    total: int
    eta_s: float | None
    host: str
    retry_of: int | None
    queue_position: int | None
    starts_in_s: float | None
    waiting: WaitingOut | None


class DeletionOut(Schema):
    """Counts of what was deleted, or with `dry_run` of what would be."""

    runs: int
    uploads: int
    measurements: int
    compilations: int
    points: int
    verdicts: int = Field(alias="points", description="the old name of `points`, which have them")
    series: int
    experiments: int
    tasks: int
    artifacts: int
    file_bytes: int
    expectations: int
    series_judged_again: int


class ArtifactOut(Schema):
    id: int
    task: int
    name: str
    process: int
    kind: str
    size_bytes: int
    sha256: str
    url: str


class ArtifactsOut(Schema):
    items: list[ArtifactOut]


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


class SchedulesOut(Schema):
    items: list[ScheduleOut]
