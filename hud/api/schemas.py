"""Request and response bodies of the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from ninja import Schema
from pydantic import ConfigDict, Field, field_validator

from runner.schema.plan import Caches
from runner.schema.suite import MAX_COMPILATIONS

MAX_FACTS_BYTES = 1024 * 1024  # about 15 kB for each interpreter of a host
Labels = dict[Annotated[str, Field(min_length=1, max_length=100)], Annotated[str, Field(max_length=100)]]


class Error(Schema):
    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] = []


class SkippedOut(Schema):
    pointer: str
    reason: str
    line: int | None = None


class ReceiptOut(Schema):
    id: int | None
    run_ids: list[int]
    stored: int
    duplicates: int
    skipped: list[SkippedOut]
    skipped_total: int
    warnings: list[str]
    links: dict[str, str]


class ImportOut(Schema):
    id: str
    state: str
    done_records: int
    receipt: ReceiptOut | None
    problem: dict[str, Any] | None
    links: dict[str, str]


class IdentityOut(Schema):
    """The identity of an experiment."""

    suite: str
    case: str
    knobs: dict[str, Any]
    mode: str
    dtype: str
    backend: str
    device: str
    arch: str
    dynamic: bool


class ExperimentOut(IdentityOut):
    id: int


class ExperimentsOut(Schema):
    items: list[ExperimentOut]
    next: str | None


class AuditRowOut(Schema):
    id: int
    at: datetime
    who: str
    action: str
    subject: str
    address: str
    detail: dict[str, Any]


class AuditOut(Schema):
    items: list[AuditRowOut]
    next: str | None


class CompilationOut(Schema):
    """The value of one compilation, the median of `n` samples; `variant` is null where its kernels are not
    known."""

    variant: str | None
    value: float
    n: int


class PointOut(Schema):
    run: int
    time: str
    commit: str
    branch: str
    value: float | None
    samples: list[float]
    n: int
    status: str
    code: str | None
    target: float | None
    target_arch: str | None
    target_met: bool | None
    verdict: str | None
    level: float | None
    source: str
    process: int
    compilations: list[CompilationOut]


class SeriesOut(Schema):
    unit: str
    direction: str
    points: list[PointOut]
    next: str | None


class KernelOut(Schema):
    slot: str
    choice: str
    binary: str
    name: str
    kind: str
    config: str
    origins: list[str]
    calls: float
    time_us: float | None
    bytes: int | None
    flops: int | None
    candidates: int
    ranked: list[tuple[str, float]]
    default: str


class VariantOut(Schema):
    """The kernels of a variant in its newest compilation, which is of this run and experiment."""

    variant: str
    compilations: int
    run: int
    experiment: int
    time: datetime
    busy_us: float | None
    kernels: list[KernelOut]


class StrictBody(Schema):
    """A body that people write: unknown keys are refused, and `true` or "1" is no 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


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


class RegressionOut(IdentityOut):
    id: int
    state: str
    experiment: int
    metric: str
    unit: str
    direction: str
    before: float | None = Field(description="the accepted level")
    after: float | None
    change: float | None = Field(description="relative, signed as the value moved")
    factor: float | None = Field(description="the change in units of the series' noise")
    points: int = Field(description="runs since it moved")
    kind: str = Field(description="step, failure, small step, drift")
    cause: str
    canaries: str = Field(description="what the host measured without a compiler: moved, quiet, or empty")
    since: datetime = Field(description="order time of the first run that moved")
    first_run: int | None
    last_good_run: int | None
    base_commit: str
    head_commit: str
    owner: str
    note: str
    link: str
    muted_until: datetime | None
    opened: datetime
    state_since: datetime


class BuildOut(Schema):
    interpreter: str
    torch: str
    torch_git: str
    date: str = Field(description="day of the commit; empty if unknown")


class BisectStepOut(Schema):
    base: int = Field(description="place in `environments`, as are `head`, `good` and `bad`")
    head: int
    run: int | None
    answer: str = Field(description="worse, same, unclear, none; empty until the run has ended")
    pairs: list[tuple[float, float]] | None
    change: float | None = Field(description="relative, over all pairs of these two so far")
    low: float | None = Field(description="95 % interval of the log ratio")
    high: float | None
    finished: datetime | None


class BisectOut(Schema):
    id: int
    regression: int
    state: str = Field(description="running, found, not_reproduced, cannot_tell, cancelled")
    host: str
    environments: list[BuildOut]
    steps: list[BisectStepOut]
    usual_steps: int
    good: int | None
    bad: int | None
    conclusion: str
    requested_by: str
    created: datetime
    finished: datetime | None


class RegressionsOut(Schema):
    items: list[RegressionOut]


class RegressionHistoryOut(Schema):
    at: datetime
    who: str = Field(description="empty: the judge")
    event: str
    before: str
    after: str
    note: str
    run: int | None


class RegressionDetailOut(RegressionOut):
    history: list[RegressionHistoryOut]


class RegressionEventIn(Schema):
    model_config = ConfigDict(extra="forbid")
    event: Literal["accept", "acknowledge", "dismiss", "mute", "confirm"]
    note: str = Field("", max_length=1000)
    until: datetime | None = Field(
        None, description="end of `mute`, in the future and within a year; without it, muting ends now"
    )


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
    verdicts: int
    series: int
    experiments: int
    tasks: int
    artifacts: int
    file_bytes: int
    targets: int
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
