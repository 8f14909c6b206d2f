"""The API below `/api/v1/`, for programs, and the protocol of hosts, which has a description of its own.
Errors are problem+json."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.core.exceptions import TooManyFieldsSent
from django.db import DataError
from django.http import Http404, HttpRequest, HttpResponse
from ninja.errors import HttpError, ValidationError

from hud.api.auth import Key
from hud.api.results import refusal
from hud.api.schemas import Api, StrictParser
from hud.problems import Problem, passing_problem
from hud.runs.tasks import LeaseBroken
from runner.formats.errors import BadUpload, Fault

logger = logging.getLogger(__name__)
_COMMON: dict[str, Any] = {"version": "1", "parser": StrictParser(), "auth": Key()}
_HOSTS: dict[str, Any] = {"openapi_url": "/hosts/openapi.json", "docs_url": "/hosts/docs"}
api = Api(title="Compiler HUD", urls_namespace="api", **_COMMON)
host_api = Api(title="Compiler HUD: protocol of hosts", urls_namespace="host_api", **_COMMON, **_HOSTS)
for name in (
    "results", "runs", "experiments", "series", "comparisons", "history", "regressions", "administration",
    "hosts",
):  # fmt: skip
    api.add_router("", f"hud.api.{name}.router")
host_api.add_router("", "hud.api.agent.router")


def _invalid(error: ValidationError) -> Problem:
    faults = []
    for fault in error.errors:
        steps = list(fault["loc"][1:])
        if steps[:1] == ["given"]:  # the function's argument
            del steps[0]
        faults.append(Fault("".join(f"/{step}" for step in steps), fault["msg"]))
    return Problem(422, "the request is not what this call takes", errors=faults)


def _not_storable(_error: Exception) -> Problem:
    return Problem(422, "a text holds a character, or a number a value, that cannot be stored")


_PROBLEMS: dict[type[Exception], Callable[[Any], Problem]] = {
    Problem: lambda error: error,
    LeaseBroken: lambda error: Problem(409, str(error), code="lease_broken"),
    Http404: lambda error: Problem(404, str(error) or "nothing is here"),
    BadUpload: refusal,
    ValidationError: _invalid,
    HttpError: lambda error: Problem(
        error.status_code, f"{error}: {error.__cause__}" if error.__cause__ else str(error)
    ),
    TooManyFieldsSent: lambda _error: Problem(400, "the query has too many parts"),
    DataError: _not_storable,
    UnicodeEncodeError: _not_storable,
    Exception: lambda error: passing_problem(error) or Problem(500, "an error of ours; it is in the log"),
}


def _answer(request: HttpRequest, error: Any) -> HttpResponse:
    kind = next(kind for kind in type(error).__mro__ if kind in _PROBLEMS)
    problem = _PROBLEMS[kind](error)
    if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("unexpected error on %s", request.path, exc_info=error)
    elif kind is Exception:
        logger.warning("%s: %s", problem, error)
    return problem.response()


for _kind in _PROBLEMS:
    api.add_exception_handler(_kind, _answer)
    host_api.add_exception_handler(_kind, _answer)
