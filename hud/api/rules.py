"""Rules over the API: what is judged how, and what should be reached."""

from typing import Annotated, Any, Literal

from django.db import transaction
from django.http import HttpRequest
from ninja import Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.auth import who
from hud.api.schemas import SHOWN, StrictBody
from hud.judging.rules import write
from hud.judging.rules.write import InvalidRule
from hud.models import Metric, Target, Threshold
from hud.pages.rules import query
from hud.problems import Problem
from runner.formats.errors import Fault

router = Router(tags=["rules"])
_MOST = 1000  # of a kind
_KINDS: dict[str, Any] = {"targets": Target, "metrics": Metric, "thresholds": Threshold}
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Matched(StrictBody):
    """The names that a rule matches; an empty text matches anything."""

    id: int | None = Field(None, exclude=True, description="as `GET` has it; ignored")
    suite: str = Field("", max_length=60)
    case: str = Field("", max_length=200)
    backend: str = Field("", max_length=100)
    arch: str = Field("", max_length=100)
    note: str = Field("", max_length=300)


class TargetIn(_Matched):
    metric: str = Field(min_length=1, max_length=200)
    dtype: str = Field("", max_length=40)
    size: str = Field("", max_length=40, description="the case parameter D")
    value: Number | None = Field(None, description="in the metric's unit; this or `share`")
    share: Number | None = Field(None, description="of the arch's measured copy bandwidth")


class ThresholdIn(_Matched):
    metric: str = Field("", max_length=200)
    relative: Number | None = Field(None, description="smallest change that counts: 0.02 for 2 %")
    minimum: Number | None = Field(None, description="smallest change that counts, in the metric's unit")
    judged: bool | None = Field(
        None, description="false: no verdicts; true: opens regressions; null: by the metric's role"
    )


class MetricIn(StrictBody):
    """The meaning of a metric that the registry does not know."""

    id: int | None = Field(None, exclude=True, description="as `GET` has it; ignored")
    metric: str = Field(min_length=1, max_length=200)
    unit: str = Field("", max_length=40)
    direction: Literal["up", "down", "none"]


class RulesIn(StrictBody):
    targets: list[TargetIn] | None = Field(None, max_length=_MOST)
    thresholds: list[ThresholdIn] | None = Field(None, max_length=_MOST)
    metrics: list[MetricIn] | None = Field(None, max_length=_MOST)


class TargetOut(TargetIn):
    model_config = SHOWN
    id: int


class ThresholdOut(ThresholdIn):
    model_config = SHOWN
    id: int


class MetricOut(MetricIn):
    model_config = SHOWN
    id: int


class RulesOut(Schema):
    targets: list[TargetOut]
    thresholds: list[ThresholdOut]
    metrics: list[MetricOut]


@router.get("/rules", response=RulesOut)
def get_rules(request: HttpRequest) -> dict[str, Any]:
    """List targets, thresholds, and the metrics whose unit and direction an operator said."""
    return {name: query.COLUMNS[kind].rows(write.rules_of(kind)) for name, kind in _KINDS.items()}


@router.put("/rules", response=RulesOut)
def put_rules(request: HttpRequest, given: RulesIn) -> dict[str, Any]:
    """Replace rules, all or nothing. A list that is given becomes all rules of its kind, an empty one removes
    them; a list that is left out stays as it is. The same request again changes nothing. What a changed
    threshold or metric touches is judged again in the background."""
    with transaction.atomic():
        for name, kind in _KINDS.items():
            rows = getattr(given, name)
            try:
                if rows is not None:
                    rules = [write.rule_of(kind, row.model_dump()) for row in rows]
                    write.replace(kind, rules, who=who(request))
            except InvalidRule as error:
                fault = Fault(f"/{name}/{error.field}", str(error))
                raise Problem(422, "a rule makes no sense; nothing was changed", errors=[fault]) from error
    return get_rules(request)
