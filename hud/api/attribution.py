"""What changed between two points, over the API."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.experiments import check_query
from hud.api.schemas import AttributionOut, Error
from hud.pages.code import query
from hud.pages.code.sides import BadSide
from hud.problems import Problem

router = Router(tags=["reading"])


class Sides(Schema):
    base: str = Field(
        max_length=300, description="run:12/experiment:5, with /compilation:2 for one of several"
    )
    head: str = Field(max_length=300, description="as base; also commit:HASH/… and latest:BRANCH/…")


@router.get("/attribution", response={200: AttributionOut, (401, 403, 404, 422): Error})
def get_attribution(request: HttpRequest, given: Query[Sides]) -> dict[str, Any]:
    """Get what changed between two points: kernels with their cause and share of the change of busy time,
    environment, graph facts and compile time."""
    check_query(request, Sides)
    try:
        page = query.read(given.base, given.head, with_code=False)
    except BadSide as error:
        raise Problem(404, str(error)) from error
    return {**page.to_json(), "kernels": page.to_rows()}
