"""Errors of the API as RFC 9457 problem+json: title, status, detail and the place of each fault."""

import errno
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from django.db import IntegrityError, InterfaceError, OperationalError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from psycopg.errors import DiskFull, ForeignKeyViolation

from runner.formats.errors import Fault

PROBLEM = "application/problem+json"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_Row = TypeVar("_Row", bound=Model)


class Problem(Exception):
    """An error that the API answers with this status. `at` is the place of a single fault, whose detail is
    that of the whole."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        at: str = "",
        errors: Sequence[Fault] = (),
        retry_after_s: int | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.at = at
        self.errors = [Fault(at, detail)] if at else errors
        self.retry_after_s = retry_after_s
        self.extra = extra

    def response(self) -> HttpResponse:
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.extra,
        }
        if self.errors:
            body["errors"] = [fault.to_json() for fault in self.errors]
        response = HttpResponse(orjson.dumps(body), status=self.status, content_type=PROBLEM)
        if self.retry_after_s is not None:
            response["Retry-After"] = str(self.retry_after_s)
        if self.status == HTTPStatus.UNAUTHORIZED:
            response["WWW-Authenticate"] = "Bearer"
        return response


def passing_problem(error: BaseException | None) -> Problem | None:
    """Return what to answer to an error of the database or a disk after which the same request may succeed;
    None for any other error."""
    if isinstance(error, OperationalError | InterfaceError):
        if isinstance(error.__cause__, DiskFull):
            return Problem(507, "the disk of the database is full; try again", retry_after_s=30)
        return Problem(503, "the database is away; try again", retry_after_s=5)
    if isinstance(error, IntegrityError) and isinstance(error.__cause__, ForeignKeyViolation):
        return Problem(503, "something that this refers to was just deleted; try again", retry_after_s=1)
    if isinstance(error, OSError) and error.errno in _FULL:
        return Problem(507, "the disk of the hud is full; try again", retry_after_s=30)
    if isinstance(error, OSError) and error.errno == errno.EREMOTEIO:
        return Problem(503, "the bucket of files is away; try again", retry_after_s=5)
    return None


def row_of(kind: type[_Row], pk: int, related: str | None = None) -> _Row:
    """Return the row with this id and, in the same statement, a related one. Raise Problem 404 without it."""
    found = kind._default_manager.select_related(related).filter(pk=pk).first()
    if found is None:
        raise Problem(404, f"no {kind._meta.verbose_name} has the id {pk}")
    return found


class ProblemMiddleware(MiddlewareMixin):
    """Answer a Problem that a page raises, and turn errors that ninja answers itself, such as 405, into
    problem+json."""

    def process_response(self, request: HttpRequest, answer: HttpResponse) -> HttpResponse:
        if (
            answer.status_code < HTTPStatus.BAD_REQUEST
            or not request.path.startswith("/api/")
            or answer["Content-Type"] == PROBLEM
        ):
            return answer
        problem = Problem(answer.status_code, HTTPStatus(answer.status_code).description).response()
        if "Allow" in answer:
            problem["Allow"] = answer["Allow"]
        return problem

    def process_exception(self, _request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return exception.response() if isinstance(exception, Problem) else None
