"""Schemas that several API calls share, strict JSON bodies, and the errors and keys of every call in the
OpenAPI document."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar, get_origin

import msgspec
import orjson
from django.conf import settings
from django.http import HttpRequest, QueryDict
from ninja import NinjaAPI, Schema
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation
from ninja.parser import Parser
from pydantic import ConfigDict, Field, ValidationInfo, create_model, model_validator

from hud.accounts.roles import needs_of
from hud.models.streams import NAME_PATTERN
from hud.problems import PROBLEM, Problem
from hud.tables.table import DataTable
from runner.formats import json_text
from runner.schema.records import Record
from runner.schema.suite import MAX_COMPILATIONS

_Item = TypeVar("_Item")
_Schema = TypeVar("_Schema", bound=Schema)

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


class MatrixBody(StrictBody):
    """The parts of a suite to run, and where, as a request or a schedule says them."""

    cases: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=500)
    modes: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=20)
    dtypes: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=20)
    backends: list[Annotated[str, Field(max_length=100)]] = Field([], max_length=20)
    compilations: int | None = Field(None, ge=1, le=MAX_COMPILATIONS)
    environment: str = Field("", max_length=60)
    labels: Labels = Field({}, max_length=64)
    stream: StreamName = ""


def of_table(table: DataTable) -> Callable[[type[_Schema]], type[_Schema]]:
    """Add to a schema the columns of a table that say their kind."""
    columns = {column.name: (column.kind, ...) for column in table.columns if column.kind}

    def add(schema: type[_Schema]) -> type[_Schema]:
        about = {"__base__": schema, "__doc__": schema.__doc__, "__module__": schema.__module__}
        return create_model(schema.__name__, **about, **columns)  # type: ignore[call-overload, no-any-return]

    return add


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
                raise Problem(422, detail, at=f"?{name[:60]}")
            if len(values) > 1 and get_origin(known[name].annotation) is not list:
                raise Problem(422, f"the filter {name!r} is said twice; it takes one value", at=f"?{name}")
            if any("\0" in value for value in values):
                raise Problem(422, f"the filter {name!r} holds a NUL character", at=f"?{name}")
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


# ---- the OpenAPI document

(RECORD,), _RECORDS = msgspec.json.schema_components([Record], ref_template="#/components/schemas/{name}")
_ERROR = {"$ref": "#/components/schemas/Error"}
_AWAY = {503: "the database is away; `Retry-After` says when to ask again"}
_KEY = {
    401: "no key, or one that is unknown, revoked or expired",
    403: "the key may not do this",
    429: "too many wrong keys from one address, or calls of one key; `Retry-After` says how long to wait",
}
_PATH = {404: "nothing is here"}
_GIVEN = {422: "not what this call takes; `errors` says where"}
_BODY = {400: "the body is not of its format", 413: "the body is over the limit"}
_RAW_BODY = {411: "no Content-Length", 415: "an unknown Content-Encoding"}


class StrictParser(Parser):
    """Parse JSON bodies as strictly as uploads: no NaN, no duplicate key, no NUL (PostgreSQL)."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """Return the parsed body. Raise ValueError, which ninja turns into a 400."""
        body = request.body.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, which some editors write
        value: dict[str, Any] = orjson.loads(body)
        json_text.refuse_nul(body)
        if problem := json_text.problem(body):
            raise ValueError(problem)
        return value


_FORMER_MODULES = {  # of calls that moved: programs made from the document use its operation ids
    "get_attribution": "attribution",
    "get_compare": "compare",
    "get_result": "runs",
    "get_audit": "audit",
    **dict.fromkeys(("get_streams", "put_stream"), "streams"),
    **dict.fromkeys(("get_annotations", "post_annotation", "delete_annotation"), "notes"),
    **dict.fromkeys(("get_schedules", "post_schedule", "put_schedule", "delete_schedule"), "schedules"),
    **dict.fromkeys(("get_known_failures", "post_known_failure", "delete_known_failure"), "known_failures"),
    **dict.fromkeys(("get_rules", "put_rules"), "rules"),
}


class Api(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        function = operation.view_func
        module = _FORMER_MODULES.get(function.__name__) or function.__module__.rpartition(".")[2]
        return f"hud_api_{module}_{function.__name__}"

    def get_openapi_schema(self, **given: Any) -> OpenAPISchema:
        schema = super().get_openapi_schema(**given)
        schema["components"]["schemas"] |= _RECORDS
        # a route of Django as OpenAPI writes it: `runs/<int:id>` is `/api/v1/runs/{id}`
        names = {
            "/api/v1/"
            + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(url.pattern)): f"{self.urls_namespace}:{url.name}"  # type: ignore[union-attr]
            for url in reversed(self.urls[0])
        }
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                _complete(operation)
                needs = needs_of(names[path]) or {}
                if needs.get(method.upper()) == "read" and settings.HUD_PUBLIC_READ:
                    operation["security"].append({})  # reading needs no key here
        return schema


def _complete(operation: dict[str, Any]) -> None:
    responses: dict[int, dict[str, Any]] = operation["responses"]
    for response in responses.values():
        content = response.get("content", {})
        if content.get("application/json", {}).get("schema") == _ERROR:
            response["content"] = {PROBLEM: content["application/json"]}
    errors = dict(_AWAY)
    if operation.get("security"):
        errors |= _KEY
    if any(parameter["in"] == "path" for parameter in operation["parameters"]):
        errors |= _PATH
    if operation["parameters"] or "requestBody" in operation:
        errors |= _GIVEN
    if "requestBody" in operation:
        errors |= _BODY
    for status, answer in _problems(errors).items():
        responses.setdefault(status, answer)


def _problems(errors: dict[int, str]) -> dict[int, dict[str, Any]]:
    content = {PROBLEM: {"schema": _ERROR}}
    return {status: {"description": text, "content": content} for status, text in errors.items()}


def raw_body(description: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return `openapi_extra` for a call that reads its body itself; `content` maps types to schemas."""
    kinds = {kind: {"schema": schema} for kind, schema in content.items()}
    body = {"required": True, "description": description, "content": kinds}
    return {"requestBody": body, "responses": _problems(_RAW_BODY)}


def file_answer(description: str, *kinds: str) -> dict[str, Any]:
    """Return `openapi_extra` for a call that answers a file of one of these types."""
    content: dict[str, Any] = {kind: {"schema": {}} for kind in kinds}
    return {"responses": {200: {"description": description, "content": content}}}


def parameter(location: str, name: str, description: str = "", **schema: Any) -> dict[str, Any]:
    """Describe a header or query parameter that a call reads itself."""
    given = {"in": location, "name": name, "required": False, "schema": {"type": "string", **schema}}
    return given | ({"description": description} if description else {})
