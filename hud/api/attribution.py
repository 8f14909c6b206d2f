"""Attribution over the API: the change between two points, kernel by kernel."""

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.schemas import Error, Filter, IdentityOut
from hud.pages import streams
from hud.pages.code import query
from hud.points.sides import BadSide
from hud.problems import Problem

router = Router(tags=["reading"])


class _SidesQuery(Filter):
    base: str = Field(
        max_length=300, description="run:12/experiment:5, with /compilation:2 for one of several"
    )
    head: str = Field(
        max_length=300, description="as base; also commit:HASH/…, latest:BRANCH/… and night:DAY/…"
    )
    stream: str = Field("", max_length=60, description="of commits, branches and nights; else the front one")


class AttributionSideOut(IdentityOut):
    side: str
    run: int
    experiment: int
    commit: str
    time: str
    host: str
    torch: str
    environment: str
    compilations: list[int]
    variants: list[str]


class BusyTimeOut(Schema):
    """Means over the compilations, in µs of a step: kernels - overlap = busy."""

    busy_us: float | None
    kernels_us: float | None
    overlap_us: float
    gaps_us: float | None
    call_us: float | None
    overhead_us: float | None


class CauseOut(Schema):
    change_us: float
    share: float | None


class KernelChangeOut(Schema):
    """A kernel, or the part of it that has this cause. `group`: moved work that shares operators."""

    cause: str
    kernel: str
    kind: str
    origins: list[str]
    base_us: float | None
    head_us: float | None
    change_us: float | None
    share: float | None
    beyond_noise: bool
    portion: float
    group: int | None
    slot: str
    base_choice: str | None
    head_choice: str | None
    base_config: str | None
    head_config: str | None
    base_binary: str | None
    head_binary: str | None
    base_calls: float | None
    head_calls: float | None


class AttributionOut(Schema):
    stream: str
    base: AttributionSideOut
    head: AttributionSideOut
    totals: dict[str, BusyTimeOut]
    busy_change_us: float | None
    gaps_change_us: float | None
    overhead_change_us: float | None
    causes: dict[str, CauseOut]
    remainder_us: float | None
    adds_up: bool | None
    card_ratio: float | None
    environment: list[str]
    graph: dict[str, list[dict[str, Any]]]
    compile: dict[str, Any]
    kernels: list[KernelChangeOut]


@router.get("/attribution", response={200: AttributionOut, 404: Error})
def get_attribution(request: HttpRequest, given: Query[_SidesQuery]) -> dict[str, Any]:
    """Get what changed between two points: kernels with their cause and share of the change of busy time,
    environment, graph facts and compile time."""
    try:
        page = query.read(given.base, given.head, streams.of_request(request), with_code=False)
    except BadSide as error:
        raise Problem(404, str(error)) from error
    return {**page.to_json(), "kernels": page.to_rows()}
