"""Comparisons of runs over the API."""

from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.schemas import Error, Filter
from hud.pages import streams
from hud.pages.compare import text
from hud.pages.compare.query import Filters, read
from hud.points.sides import BadSide
from hud.problems import Problem

router = Router(tags=["reading"])


class _CompareQuery(Filter):
    base: str = Field(
        max_length=300, description="run:12, commit:abc123, latest:main, host:NAME, date:DAY or night:DAY"
    )
    head: list[str] = Field(min_length=1, max_length=3, description="as base; repeated for up to three")
    metric: str = Field("", max_length=200, description="else of each experiment the most telling")
    suite: str = Field("", max_length=60)
    arch: str = Field("", max_length=100)
    mode: str = Field("", max_length=40)
    dtype: str = Field("", max_length=40)
    stream: str = Field("", max_length=60, description="of commits, branches, hosts and days; else the front")
    verdict: Literal["", "regressed", "improved", "failed", "inconclusive", "unchanged"] = ""
    formulas: Literal["", "hud"] = Field("", description="hud: those of PyTorch's HUD")
    format: Literal["json", "md"] = "json"


class CompareOut(Schema):
    stream: str
    base: dict[str, Any]
    head: dict[str, Any] = Field(description="the first candidate")
    counts: dict[str, Any] = Field(description="its experiments: matched, on one side only, by verdict")
    totals: dict[str, Any] = Field(description="all together: passing, means and a sum with intervals")
    aggregates: list[dict[str, Any]] = Field(description="its suites and backends, with 95 % intervals")
    heads: list[dict[str, Any]] = Field(description="each candidate with its counts, totals and aggregates")
    environment: list[dict[str, Any]] = Field(description="the facts that differ")
    items: list[dict[str, Any]] = Field(description="experiments: movers first, then the rest")


@router.get(
    "/compare",
    response={200: CompareOut, (400, 404): Error},
    openapi_extra={"responses": {200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}}},
)
def get_compare(request: HttpRequest, given: Query[_CompareQuery]) -> Any:
    """Compare runs: matched cohort, a verdict for each experiment, aggregates with their 95 % interval. What
    another card, host or environment may have caused is inconclusive, with that as its reason."""
    sides = {"base", "head", "stream", "format"}
    filters = Filters(**given.model_dump(exclude=sides))
    try:
        page = read(given.base, given.head, filters, streams.of_request(request))
    except BadSide as error:
        raise Problem(error.status, str(error)) from error
    if given.format == "md":
        rows = text.shown(page, everything=False)
        return HttpResponse(text.markdown(page, rows), content_type="text/markdown; charset=utf-8")
    return {**page.to_json(), "items": page.to_rows()}
