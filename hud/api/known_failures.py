"""Known failures over the API: list, mark and forget them."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status
from pydantic import Field

from hud.api.auth import who
from hud.api.experiments import stream_of
from hud.api.schemas import Error, Filter, IdentityOut, Items, StrictBody
from hud.judging.regressions.known_failures import MOST_REASON, forget, mark
from hud.models import Experiment, KnownFailure
from hud.problems import row_of
from hud.tables.table import EXPERIMENT, DataTable

router = Router(tags=["known failures"])
_MOST = 500
_COLUMNS = DataTable(f"id=pk stream=stream.name {EXPERIMENT} reason author created")


class _KnownFailuresQuery(Filter):
    stream: str = Field("", max_length=60)
    experiment: int | None = Field(None, ge=1, le=2**31 - 1)


class KnownFailureIn(StrictBody):
    """Without `stream` it is the front stream's."""

    stream: str = Field("", max_length=60)
    experiment: int = Field(ge=1, le=2**31 - 1)
    reason: str = Field(min_length=1, max_length=MOST_REASON)


class KnownFailureOut(IdentityOut):
    id: int
    stream: str
    experiment: int
    reason: str
    author: str
    created: datetime


@router.get("/known_failures", response={200: Items[KnownFailureOut], 404: Error})
def get_known_failures(request: HttpRequest, given: Query[_KnownFailuresQuery]) -> dict[str, Any]:
    """List failures that people have marked as known, the newest first, at most 500: of all streams and
    experiments, or of one."""
    failures = KnownFailure.objects.select_related("stream", "experiment").order_by("-created", "-pk")
    if given.stream:
        failures = failures.filter(stream=stream_of(given.stream))
    if given.experiment:
        failures = failures.filter(experiment=given.experiment)
    return {"items": [_COLUMNS.row(failure) for failure in failures[:_MOST]]}


@router.post("/known_failures", response={201: KnownFailureOut, 404: Error})
def post_known_failure(request: HttpRequest, given: KnownFailureIn) -> Any:
    """Mark the failures of an experiment in a stream as known: they are shown, and are no news. Marked again,
    it gets the new reason."""
    experiment = row_of(Experiment, given.experiment)
    stream = stream_of(given.stream)
    failure = mark(stream=stream, experiment=experiment, reason=given.reason, who=who(request))
    return Status(201, _COLUMNS.row(failure))


@router.delete("/known_failures/{int:failure_id}", response={204: None})
def delete_known_failure(request: HttpRequest, failure_id: int) -> HttpResponse:
    """Forget a known failure: if it goes on, it is news again with the next night."""
    forget(row_of(KnownFailure, failure_id), who=who(request))
    return HttpResponse(status=204)
