"""Regressions over the API: list them, decide on one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from ninja import Query, Router, Status
from ninja.schema import Schema
from pydantic import Field

from hud.api.auth import who
from hud.api.experiments import check_query
from hud.api.schemas.base import Error
from hud.api.schemas.regressions import (
    BisectOut,
    CauseOut,
    CausesOut,
    RegressionDetailOut,
    RegressionEventIn,
    RegressionOut,
    RegressionsOut,
)
from hud.judging.bisect import work
from hud.judging.regressions import decide
from hud.judging.regressions.states import TOLD, Event, RegressionState
from hud.models import Bisect, Cause, Regression, Stream
from hud.pages.regressions import bisects, query
from hud.problems import Problem, row_of
from hud.runs import streams
from runner.formats.errors import Fault

router = Router(tags=["regressions"])


class RegressionFilter(Schema):
    state: RegressionState | None = None
    arch: str = Field("", max_length=100)
    suite: str = Field("", max_length=60)
    branch: str = Field("", max_length=200)
    stream: str = Field("", max_length=60)


@router.get("/regressions", response={200: RegressionsOut, (401, 403, 404, 422): Error})
def get_regressions(request: HttpRequest, given: Query[RegressionFilter]) -> dict[str, Any]:
    """List regressions, the newest first, at most 500: of one state and stream, or of all. They are of the
    default branch; another branch has none."""
    check_query(request, RegressionFilter)
    stream = _stream(given.stream)
    filters = query.Filters(
        tab="all", state=given.state or "", arch=given.arch, suite=given.suite, branch=given.branch
    )
    return {"items": [line.to_row() for line in query.listed(filters, stream)]}


@router.post(
    "/regressions/{int:regression_id}", response={200: RegressionOut, (401, 403, 404, 409, 422): Error}
)
def post_regression(request: HttpRequest, regression_id: int, given: RegressionEventIn) -> dict[str, Any]:
    """Decide on a regression. Accepting or dismissing makes the present level the baseline; a regression that
    the decision does not fit answers 409. `until` belongs to `mute`."""
    _decide(request, [row_of(Regression, regression_id, related="series__experiment")], given)
    line = query.line_of(regression_id)
    assert line
    return line.to_row()


def _decide(request: HttpRequest, regressions: Iterable[Regression], given: RegressionEventIn) -> None:
    """Decide on each regression that the decision fits. Raise CannotDo or Problem where it fits none."""
    until, about = given.until, {"who": who(request), "note": given.note}
    if until and given.event != "mute":
        raise Problem(422, "`until` belongs to the event `mute`")
    if until and timezone.is_naive(until):
        until = timezone.make_aware(until, UTC)

    def decision(one: Regression) -> Regression:
        if given.event == "mute":
            return decide.mute(regression=one, until=until, **about)
        return decide.act(regression=one, event=Event(given.event), **about)

    done, refused = decide.decide_each(regressions, decision)
    if not done:
        error = refused[0] if refused else decide.CannotDo("nothing of this cause waits for a decision")
        if isinstance(error, decide.BadEnd):
            raise Problem(422, str(error), errors=[Fault("/until", str(error))]) from error
        raise error


def _stream(name: str) -> Stream | None:
    stream = streams.named(name).first() if name else None
    if name and stream is None:
        raise Problem(404, f"no stream is called {name}")
    return stream


class CauseFilter(Schema):
    state: RegressionState | None = None
    stream: str = Field("", max_length=60)


@router.get("/causes", response={200: CausesOut, (401, 403, 404, 422): Error})
def get_causes(request: HttpRequest, given: Query[CauseFilter]) -> dict[str, Any]:
    """List causes, the newest first, at most 500: of one stream, or of all, and with a regression in a
    state."""
    check_query(request, CauseFilter)
    return {"items": query.causes(_stream(given.stream), given.state or "")}


@router.get("/causes/{int:cause_id}", response={200: CauseOut, 303: None, (401, 403, 404): Error})
def get_cause(request: HttpRequest, cause_id: int) -> dict[str, Any] | HttpResponse:
    """Get a cause. One that was merged leads to the other."""
    cause = row_of(Cause, cause_id, related="stream")
    if cause.merged_into_id:
        address = reverse("api:get_cause", args=[cause.merged_into_id])
        return HttpResponse(status=303, headers={"Location": address})
    return query.cause_row(cause)


@router.post("/causes/{int:cause_id}", response={200: CauseOut, (401, 403, 404, 409, 422): Error})
def post_cause(request: HttpRequest, cause_id: int, given: RegressionEventIn) -> dict[str, Any]:
    """Decide on the regressions of a cause that wait for somebody, as on a regression. One that was merged
    stands for the other."""
    cause = row_of(Cause, cause_id, related="merged_into__stream")
    cause = cause.merged_into or cause
    present = cause.regressions.filter(state__in=TOLD).select_related("series__experiment").order_by("pk")
    _decide(request, present, given)
    return query.cause_row(cause)


@router.get("/regressions/{int:regression_id}", response={200: RegressionDetailOut, (401, 403, 404): Error})
def get_regression(request: HttpRequest, regression_id: int) -> dict[str, Any]:
    """Get a regression with its history."""
    detail = query.detail_of(regression_id) if regression_id < 2**31 else None
    if detail is None:
        raise Problem(404, f"no regression has the id {regression_id}")
    return detail.to_json()


@router.post(
    "/regressions/{int:regression_id}/bisect", response={201: BisectOut, (401, 403, 404, 409): Error}
)
def post_bisect(request: HttpRequest, regression_id: int) -> Status[dict[str, Any]]:
    """Search for the version of torch that made a regression, over the interpreters of the host that measured
    it: its two ends in pairs first. Answers 409 where that cannot start."""
    bisect = work.start(regression=row_of(Regression, regression_id), who=who(request))
    return Status(201, bisects.view(bisect).to_json())


@router.get("/bisects/{int:bisect_id}", response={200: BisectOut, (401, 403, 404): Error})
def get_bisect(request: HttpRequest, bisect_id: int) -> dict[str, Any]:
    """Return a bisect with its steps so far."""
    return bisects.view(row_of(Bisect, bisect_id, related="accelerator__host")).to_json()
