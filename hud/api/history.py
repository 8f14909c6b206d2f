"""Questions over whole histories, which the archive answers."""

from datetime import date, datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Query, Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.experiments import stream_of
from hud.api.schemas import Error, Filter, of_table
from hud.archive import ask
from hud.archive.months import WRITTEN_EVERY_H

router = Router(tags=["reading"])
_WRITTEN = f"within {WRITTEN_EVERY_H} h"


class _HistoryQuery(Filter):
    kind: Literal["regressed", "compared", "flagged"] = Field("regressed", alias="question")
    months: int = Field(12, ge=1, le=ask.MOST_MONTHS, description="the newest closed ones")
    suite: str = Field("", max_length=60)
    metric: str = Field("", max_length=200)
    least: float = Field(0.05, ge=0.001, le=10, description="the smallest relative change that counts")
    base: str = Field("", max_length=100, description="a version of torch, of `compared`; as `head`")
    head: str = Field("", max_length=100)
    stream: str = Field("", max_length=60)


@of_table(ask.COLUMNS)
class ChangeOut(Schema):
    """A series or, of `flagged`, a point."""

    worse: float = Field(description="the relative change, below 0 for the better")
    run: int | None = Field(description="of the point, or of the largest step that the judge saw")
    time: datetime | None = Field(description="of that run")


class HistoryOut(Schema):
    stream: str
    first: date | None = Field(description="of the archived months in question; null: there is none")
    last: date | None
    changed_months: list[date] = Field(description=f"in PostgreSQL since they were written, {_WRITTEN}")
    unwritten_months: list[date] = Field(description=f"closed ones, which this does not know, {_WRITTEN}")
    points: int = Field(description="of these months in the archive, whatever their suite and metric")
    totals: list[dict[str, Any]] = Field(description="of everything, then of each suite or month")
    items: list[ChangeOut] = Field(description="the largest changes, at most 200")


@router.get("/history", response={200: HistoryOut, (404, 422, 503): Error})
def get_history(request: HttpRequest, given: Query[_HistoryQuery]) -> dict[str, Any]:
    """Ask the archive what got worse and stayed so (medians of the first and of the last two weeks), what
    differs between two versions of torch, or which points a threshold against the point before would have
    flagged."""
    stream = stream_of(given.stream)
    answer = ask.ask(ask.Question(**given.model_dump(exclude={"stream"})), stream)
    return {"stream": stream.name, **answer.to_json(), "items": ask.COLUMNS.rows(answer.items)}
