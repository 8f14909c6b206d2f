"""Regressions over the API: list them, decide on one."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router, Status
from ninja.schema import Schema
from pydantic import Field

from hud.api.auth import who
from hud.api.experiments import check_query
from hud.api.schemas.base import Error
from hud.api.schemas.regressions import (
    BisectOut,
    RegressionDetailOut,
    RegressionEventIn,
    RegressionOut,
    RegressionsOut,
)
from hud.judging.bisect import work
from hud.judging.regressions import decide
from hud.judging.regressions.states import Event, RegressionState
from hud.models import Bisect, Regression
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
    filters = query.Filters(
        tab="all", state=given.state or "", arch=given.arch, suite=given.suite, branch=given.branch
    )
    stream = streams.named(given.stream).first() if given.stream else None
    if given.stream and stream is None:
        raise Problem(404, f"no stream is called {given.stream}")
    return {"items": [line.to_row() for line in query.listed(filters, stream)]}


@router.post(
    "/regressions/{int:regression_id}", response={200: RegressionOut, (401, 403, 404, 409, 422): Error}
)
def post_regression(request: HttpRequest, regression_id: int, given: RegressionEventIn) -> dict[str, Any]:
    """Decide on a regression. Accepting or dismissing makes the present level the baseline; a regression that
    the decision does not fit answers 409. `until` belongs to `mute`."""
    found = row_of(Regression, regression_id, related="series__experiment")
    if given.event == "mute":
        until = given.until
        if until and timezone.is_naive(until):
            until = timezone.make_aware(until, UTC)
        try:
            decide.mute(regression=found, who=who(request), until=until, note=given.note)
        except decide.BadEnd as error:
            raise Problem(422, str(error), errors=[Fault("/until", str(error))]) from error
    elif given.until:
        raise Problem(422, "`until` belongs to the event `mute`")
    else:
        decide.act(regression=found, event=Event(given.event), who=who(request), note=given.note)
    line = query.line_of(regression_id)
    assert line
    return line.to_row()


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
