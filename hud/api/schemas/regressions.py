"""Regressions, bisects, and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Schema
from pydantic import ConfigDict, Field

from hud.api.schemas.base import IdentityOut


class RegressionOut(IdentityOut):
    id: int
    state: str
    stream: str
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
    cause: str = Field(description="in words, where something tells it")
    cause_id: int | None = Field(description="null until its night is complete")
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
    differs: str = Field("", description="what tells it from others with the same torch")


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


class CauseOut(Schema):
    id: int
    stream: str
    night: datetime
    title: str
    created: datetime
    series: int
    states: dict[str, int] = Field(description="how many of its regressions are in each state")
    regressions: list[int]


class CausesOut(Schema):
    items: list[CauseOut]


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
