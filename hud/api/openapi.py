"""What ninja lacks: strict JSON bodies, and an OpenAPI document in which errors are problem+json, calls need
a key, and every call lists its errors."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
from django.conf import settings
from django.http import HttpRequest
from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema
from ninja.parser import Parser

from hud.problems import PROBLEM
from runner.formats import json_text
from runner.schema.records import Record

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


class StrictParser(Parser):
    """Reads JSON bodies as strictly as uploads: no NaN, no duplicate key, no NUL (PostgreSQL)."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """Raise ValueError, which ninja makes a 400."""
        body = request.body.removeprefix(b"\xef\xbb\xbf")  # with which some editors begin a text
        value: dict[str, Any] = orjson.loads(body)
        json_text.refuse_nul(body)
        if problem := json_text.problem(body):
            raise ValueError(problem)
        return value


class Api(NinjaAPI):
    def get_openapi_schema(self, **given: Any) -> OpenAPISchema:
        schema = super().get_openapi_schema(**given)
        schema["components"]["schemas"] |= _RECORDS
        for operations in schema["paths"].values():
            for method, operation in operations.items():
                _complete(operation)
                if method == "get" and settings.HUD_PUBLIC_READ:
                    operation["security"].append({})  # reading needs no key here
        return schema


def _complete(operation: dict[str, Any]) -> None:
    responses: dict[int, dict[str, Any]] = operation["responses"]
    for response in responses.values():
        content = response.get("content", {})
        if content.get("application/json", {}).get("schema") == _ERROR:
            response["content"] = {PROBLEM: content["application/json"]}
    said = dict(_AWAY)
    if operation.get("security"):
        said |= _KEY
    if any(parameter["in"] == "path" for parameter in operation["parameters"]):
        said |= _PATH
    if operation["parameters"] or "requestBody" in operation:
        said |= _GIVEN
    if "requestBody" in operation:
        said |= _BODY
    for status, words in said.items():
        responses.setdefault(status, {"description": words, "content": {PROBLEM: {"schema": _ERROR}}})


def raw_body(description: str, content: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a call that reads its body itself; `content` has a schema for each content type."""
    kinds = {kind: {"schema": schema} for kind, schema in content.items()}
    return {"requestBody": {"required": True, "description": description, "content": kinds}}


def parameter(place: str, name: str, description: str = "", **schema: Any) -> dict[str, Any]:
    """A header or a part of the query that a call reads itself."""
    said = {"in": place, "name": name, "required": False, "schema": {"type": "string", **schema}}
    return said | ({"description": description} if description else {})
