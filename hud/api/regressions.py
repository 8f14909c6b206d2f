"""Regressions, their causes and known failures over the API: list them, decide on them."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from ninja import Query, Router, Status
from ninja.schema import Schema
from pydantic import AwareDatetime, ConfigDict, Field

from hud.accounts.keys import effective_scopes
from hud.accounts.limits import UPLOADS
from hud.api.auth import caller_key, who
from hud.api.experiments import stream_of
from hud.api.schemas import ANSWER, Error, Filter, Items, StrictBody, of_table
from hud.judging.bisect import work
from hud.judging.bisect.work import Build
from hud.judging.regressions import events, known_failures, mirrors, read
from hud.judging.regressions.read import Scope
from hud.models import Bisect, BisectStep, Cause, Experiment, KnownFailure, Regression
from hud.problems import Problem, row_of
from hud.runs.branches import branch_or_default
from hud.states.bisect import most_steps
from hud.states.regressions import TOLD, RegressionState
from hud.tables.table import EXPERIMENT, DataTable

router = Router(tags=["regressions"])
_MOST_FAILURES = 500
_MOST_FILES = 5000  # of a commit
_FAILURE = DataTable(f"id:int=pk stream:str=stream.name {EXPERIMENT} reason:str author:str created:datetime")
_STEP = DataTable[BisectStep]("""base head:int run:int|None=run_id answer pairs:list[tuple[float,float]]|None
    change low high:float|None finished:datetime|None""")
_BISECT = DataTable[Bisect](
    """id:int=pk regression:int=regression_id state host:str=accelerator?.host.name environments=builds steps
    usual_steps:int good:int|None bad:int|None conclusion:str requested_by:str created:datetime
    finished:datetime|None""",
    steps=lambda bisect: _STEP.rows(bisect.steps.order_by("pk")),
    usual_steps=lambda bisect: most_steps(len(bisect.builds)),
)


class _CausesQuery(Filter):
    state: RegressionState | None = None
    stream: str = Field("", max_length=60)


class _RegressionsQuery(_CausesQuery):
    arch: str = Field("", max_length=100)
    suite: str = Field("", max_length=60)
    branch: str = Field("", max_length=200)


@of_table(read.COLUMNS)
class RegressionOut(Schema):
    before: float | None = Field(description="the accepted level")
    change: float | None = Field(description="relative, signed as the value moved")
    factor: float | None = Field(description="the change in units of the series' noise")
    points: int = Field(description="runs since it moved")
    kind: str = Field(description="step, failure, small step, drift")
    cause: str = Field(description="in words, where something tells it")
    cause_id: int | None = Field(description="null until its night is complete")
    canaries: str = Field(description="what the host measured without a compiler: moved, quiet, or empty")
    since: datetime = Field(description="order time of the first run that moved")


@router.get("/regressions", response={200: Items[RegressionOut], 404: Error})
def get_regressions(request: HttpRequest, given: Query[_RegressionsQuery]) -> dict[str, Any]:
    """List regressions, the newest first, at most 500: of one state and stream, or of all. They are of the
    default branch; another branch has none."""
    stream = stream_of(given.stream) if given.stream else None
    if given.branch not in ("", branch_or_default("")):
        return {"items": []}
    states = [given.state] if given.state else ()
    rows = read.rows(Scope(stream, given.arch), states=states, suite=given.suite)
    return {"items": read.COLUMNS.rows(rows[: read.MOST_ROWS])}


class RegressionEventIn(Schema):
    model_config = ConfigDict(extra="forbid")
    event: Literal["accept", "acknowledge", "dismiss", "reopen", "mute", "confirm"]
    note: str = Field("", max_length=1000)
    until: datetime | None = Field(
        None, description="end of `mute`, in the future and within a year; without it, muting ends now"
    )


@router.post("/regressions/{int:regression_id}", response={200: RegressionOut, 409: Error})
def post_regression(request: HttpRequest, regression_id: int, given: RegressionEventIn) -> dict[str, Any]:
    """Decide on a regression and all others of its cause that wait for somebody. To accept, dismiss or mute
    needs a reason as `note`. Accepting or dismissing makes the present level the baseline, reopening the one
    before; what does not fit the state answers 409. `until` belongs to `mute`."""
    _decide(request, row_of(Regression, regression_id, related="series"), given)
    (regression,) = read.complete([row_of(Regression, regression_id, related="series")])
    return read.COLUMNS.row(regression)


def _decide(request: HttpRequest, regression: Regression, given: RegressionEventIn) -> None:
    until = given.until
    if until and given.event != "mute":
        raise Problem(422, "`until` belongs to the event `mute`")
    if until and timezone.is_naive(until):
        until = timezone.make_aware(until, UTC)
    events.decide(regression, given.event, who=who(request), note=given.note, until=until)


@of_table(read.CAUSE)
class CauseOut(Schema):
    states: dict[str, int] = Field(description="how many of its regressions are in each state")


@router.get("/causes", response={200: Items[CauseOut], 404: Error})
def get_causes(request: HttpRequest, given: Query[_CausesQuery]) -> dict[str, Any]:
    """List causes, the newest first, at most 500: of one stream, or of all, and with a regression in a
    state."""
    return {"items": read.causes(stream_of(given.stream) if given.stream else None, given.state or "")}


@router.get("/causes/{int:cause_id}", response={200: CauseOut, 303: None})
def get_cause(request: HttpRequest, cause_id: int) -> dict[str, Any] | HttpResponse:
    """Get a cause. One that was merged leads to the other."""
    cause = row_of(Cause, cause_id, related="stream")
    if cause.merged_into_id:
        address = reverse("api:get_cause", args=[cause.merged_into_id])
        return HttpResponse(status=303, headers={"Location": address})
    return read.CAUSE.row(cause)


@router.post("/causes/{int:cause_id}", response={200: CauseOut, 409: Error})
def post_cause(request: HttpRequest, cause_id: int, given: RegressionEventIn) -> dict[str, Any]:
    """Decide on the regressions of a cause that wait for somebody, as on a regression. One that was merged
    stands for the other."""
    cause = row_of(Cause, cause_id, related="merged_into__stream")
    cause = cause.merged_into or cause
    first = cause.regressions.filter(state__in=TOLD).select_related("series").order_by("pk").first()
    if first is None:
        raise Problem(409, "nothing of this cause waits for a decision")
    _decide(request, first, given)
    return read.CAUSE.row(cause)


@of_table(read.EVENT)
class RegressionHistoryOut(Schema):
    who: str = Field(description="empty: the judge")


class RegressionDetailOut(RegressionOut):
    history: list[RegressionHistoryOut]


@router.get("/regressions/{int:regression_id}", response=RegressionDetailOut)
def get_regression(request: HttpRequest, regression_id: int) -> dict[str, Any]:
    """Get a regression with its history."""
    (regression,) = read.complete([row_of(Regression, regression_id, related="series")])
    return read.with_history(regression, regression.events.order_by("pk"))


class CommitIn(StrictBody):
    model_config = ConfigDict(extra="forbid", strict=False)  # a date is text
    sha: str = Field(pattern=r"^[0-9a-f]{40,64}$")
    parent: str = Field("", pattern=r"^([0-9a-f]{40,64})?$", description="the first")
    title: str = Field(min_length=1, max_length=1000)
    author: str = Field("", max_length=200)
    date: AwareDatetime
    files: list[Annotated[str, Field(max_length=500)]] = Field([], max_length=_MOST_FILES)


class CommitsIn(StrictBody):
    repo: str = Field(pattern=r"^[\w.-]{1,39}/[\w.-]{1,100}$", description="owner/name")
    commits: list[CommitIn] = Field(min_length=1, max_length=mirrors.MOST_COMMITS)


class CommitsOut(Schema):
    stored: int
    duplicates: int


@router.post("/commits", response={200: CommitsOut, 422: Error}, tags=["commits"])
def post_commits(request: HttpRequest, given: CommitsIn) -> dict[str, int]:
    """Store commits of a main line with the files that they touch, so that regressions name those of their
    range. One that is known stays as it is."""
    UPLOADS.check(caller_key(request).pk)
    rows = {one.sha: mirrors.commit_of(repo=given.repo, **one.model_dump()) for one in given.commits}
    stored = mirrors.store(rows.values())
    return {"stored": stored, "duplicates": len(given.commits) - stored}


@of_table(_STEP)
class BisectStepOut(Schema):
    base: int = Field(description="place in `environments`, as are `head`, `good` and `bad`")
    answer: str = Field(description="worse, same, unclear, none; empty until the run has ended")
    change: float | None = Field(description="relative, over all pairs of these two so far")
    low: float | None = Field(description="95 % interval of the log ratio")


@of_table(_BISECT)
class BisectOut(Schema):
    model_config = ANSWER
    state: str = Field(description="running, found, not_reproduced, cannot_tell, cancelled")
    environments: list[Build]
    steps: list[BisectStepOut]


@router.post("/regressions/{int:regression_id}/bisect", response={201: BisectOut, 409: Error})
def post_bisect(request: HttpRequest, regression_id: int) -> Status[dict[str, Any]]:
    """Search for the version of torch that made a regression, over the interpreters of the host that measured
    it, with the scope `code` also over commits by overlays: its two ends in pairs first. Answers 409 where
    that cannot start."""
    may_run_code = "code" in effective_scopes(caller_key(request))
    regression = row_of(Regression, regression_id)
    bisect = work.start(regression=regression, who=who(request), may_run_code=may_run_code)
    return Status(201, _BISECT.row(bisect))


@router.get("/bisects/{int:bisect_id}", response=BisectOut)
def get_bisect(request: HttpRequest, bisect_id: int) -> dict[str, Any]:
    """Return a bisect with its steps so far."""
    return _BISECT.row(row_of(Bisect, bisect_id, related="accelerator__host"))


class _KnownFailuresQuery(Filter):
    stream: str = Field("", max_length=60)
    experiment: int | None = Field(None, ge=1, le=2**31 - 1)


class KnownFailureIn(StrictBody):
    """Without `stream` it is the front stream's."""

    stream: str = Field("", max_length=60)
    experiment: int = Field(ge=1, le=2**31 - 1)
    reason: str = Field(min_length=1, max_length=known_failures.MOST_REASON)


@of_table(_FAILURE)
class KnownFailureOut(Schema):
    """A failure that a person marked."""


@router.get("/known_failures", response={200: Items[KnownFailureOut], 404: Error}, tags=["known failures"])
def get_known_failures(request: HttpRequest, given: Query[_KnownFailuresQuery]) -> dict[str, Any]:
    """List failures that people have marked as known, the newest first, at most 500: of all streams and
    experiments, or of one."""
    failures = KnownFailure.objects.select_related("stream", "experiment").order_by("-created", "-pk")
    if given.stream:
        failures = failures.filter(stream=stream_of(given.stream))
    if given.experiment:
        failures = failures.filter(experiment=given.experiment)
    return {"items": [_FAILURE.row(failure) for failure in failures[:_MOST_FAILURES]]}


@router.post("/known_failures", response={201: KnownFailureOut, 404: Error}, tags=["known failures"])
def post_known_failure(request: HttpRequest, given: KnownFailureIn) -> Any:
    """Mark the failures of an experiment in a stream as known: they are shown, and are no news. Marked again,
    it gets the new reason."""
    experiment = row_of(Experiment, given.experiment)
    stream = stream_of(given.stream)
    failure = known_failures.mark(stream=stream, experiment=experiment, reason=given.reason, who=who(request))
    return Status(201, _FAILURE.row(failure))


@router.delete("/known_failures/{int:failure_id}", response={204: None}, tags=["known failures"])
def delete_known_failure(request: HttpRequest, failure_id: int) -> HttpResponse:
    """Forget a known failure: if it goes on, it is news again with the next night."""
    known_failures.forget(row_of(KnownFailure, failure_id), who=who(request))
    return HttpResponse(status=204)
