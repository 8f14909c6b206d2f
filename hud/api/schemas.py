"""Schemas that the bodies, queries and answers of several API calls share."""

from typing import Annotated, Any, Generic, TypeVar, get_origin

from django.http import QueryDict
from ninja import Schema
from pydantic import ConfigDict, Field, ValidationInfo, model_validator

from hud.models.streams import NAME_PATTERN
from hud.problems import Problem
from runner.formats.errors import Fault

_Item = TypeVar("_Item")

Labels = dict[Annotated[str, Field(min_length=1, max_length=100)], Annotated[str, Field(max_length=100)]]

StreamName = Annotated[str, Field(pattern=f"^({NAME_PATTERN})?$")]  # '': the default


class Error(Schema):
    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] = []


# of an answer: all fields are there, whatever has a default
ANSWER = ConfigDict(json_schema_serialization_defaults_required=True)
# of the answer to a body that people write: what is stored is shown as it is
SHOWN = ConfigDict(extra="ignore", strict=False, **ANSWER)


class StrictBody(Schema):
    """A body that people write: unknown keys are refused, and `true` or "1" is no 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


class IdentityOut(Schema):
    """The identity of an experiment."""

    suite: str
    case: str
    knobs: dict[str, Any]
    mode: str
    dtype: str
    backend: str
    device: str
    arch: str
    dynamic: bool


class Items(Schema, Generic[_Item]):
    """All items of a list."""

    items: list[_Item]


class Filter(Schema):
    """The query of a call. Unknown and repeated parameters are refused, which would return too much or too
    little; lists take several values."""

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any, info: ValidationInfo) -> Any:
        """Raise Problem 422."""
        query: QueryDict = info.context["request"].GET  # type: ignore[index]  # as ninja gives it
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        for name, values in query.lists():
            if name not in known:
                detail = f"no filter is called {name[:60]!r}; there are: {', '.join(known)}"
                raise Problem(422, detail, errors=[Fault(f"?{name[:60]}", "unknown filter")])
            if len(values) > 1 and get_origin(known[name].annotation) is not list:
                detail = f"the filter {name!r} is said twice; it takes one value"
                raise Problem(422, detail, errors=[Fault(f"?{name}", "said twice")])
            if any("\0" in value for value in values):
                raise Problem(422, "a filter holds a NUL character")
        return data


class ExperimentsFilter(Filter):
    """Parts of the identities of experiments, and a stream that has them."""

    stream: str = Field("", max_length=60)
    suite: str = Field("", max_length=60)
    case: str = Field("", max_length=200)
    mode: str = Field("", max_length=40)
    dtype: str = Field("", max_length=40)
    backend: str = Field("", max_length=100)
    device: str = Field("", max_length=40)
    arch: str = Field("", max_length=100)
