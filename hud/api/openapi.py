"""Additions to ninja: strict JSON bodies, and the errors and keys of every call in the OpenAPI document."""

import re
from typing import Any

import msgspec
import orjson
from django.conf import settings
from django.http import HttpRequest
from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema
from ninja.parser import Parser

from hud.accounts.roles import needs_of
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


class Api(NinjaAPI):
    def get_openapi_schema(self, **given: Any) -> OpenAPISchema:
        schema = super().get_openapi_schema(**given)
        schema["components"]["schemas"] |= _RECORDS
        # a route of Django as OpenAPI writes it: `runs/<int:id>` is `/api/v1/runs/{id}`
        names = {
            "/api/v1/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(url.pattern)): f"api:{url.name}"  # type: ignore[union-attr]
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
