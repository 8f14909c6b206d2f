"""The API, `/api/v1/`: the door, runs, reading, and the talk with hosts. Errors are problem+json."""

from __future__ import annotations

import errno
import logging

from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from ninja.errors import HttpError, ValidationError
from psycopg.errors import DiskFull

from hud.api import agent, door, hosts, reading, running, schedules
from hud.api.bodies import StrictParser
from hud.api.openapi import Api
from hud.ingest.errors import BadUpload, Fault
from hud.problems import Problem
from hud.tasks import LeaseBroken, UnknownTask

logger = logging.getLogger(__name__)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
api = Api(title="Compiler HUD", version="1", urls_namespace="api", docs_url="/docs", parser=StrictParser())
for room in (door, running, reading, hosts, schedules, agent):
    api.add_router("", room.router)


@api.exception_handler(Problem)
def _problem(request: HttpRequest, error: Problem) -> HttpResponse:
    return error.response()


@api.exception_handler(LeaseBroken)
def _lease_broken(request: HttpRequest, error: LeaseBroken) -> HttpResponse:
    return Problem(409, str(error), code="lease_broken").response()


@api.exception_handler(UnknownTask)
@api.exception_handler(Http404)
def _not_found(request: HttpRequest, error: Exception) -> HttpResponse:
    return Problem(404, str(error) or "nothing is here").response()


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    faults = [
        Fault("/" + "/".join(str(step) for step in fault["loc"][1:]), fault["msg"]) for fault in error.errors
    ]
    return Problem(422, "the request is not what this call takes", errors=faults).response()


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    reason = f": {error.__cause__}" if error.__cause__ else ""
    return Problem(error.status_code, f"{error}{reason}").response()


@api.exception_handler(TooManyFieldsSent)
def _too_many(request: HttpRequest, error: TooManyFieldsSent) -> HttpResponse:
    return Problem(400, "the query has too many parts").response()


@api.exception_handler(BadUpload)
def _bad_upload(request: HttpRequest, error: BadUpload) -> HttpResponse:
    return door.refusal(error).response()


@api.exception_handler(RequestDataTooBig)
def _too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return Problem(413, "the body is over the limit").response()


@api.exception_handler(DataError)
@api.exception_handler(UnicodeEncodeError)
def _not_storable(request: HttpRequest, error: Exception) -> HttpResponse:
    return Problem(422, "a text holds a character, or a number a value, that cannot be stored").response()


@api.exception_handler(OperationalError)
@api.exception_handler(InterfaceError)
def _database_away(request: HttpRequest, error: Exception) -> HttpResponse:
    if isinstance(error.__cause__, DiskFull):
        logger.warning("the database's disk is full: %s", error)
        return Problem(507, "the disk of the database is full; try again", retry_after_s=30).response()
    logger.warning("the database is away: %s", error)
    return Problem(503, "the database is away; try again", retry_after_s=5).response()


@api.exception_handler(OSError)
def _disk_full(request: HttpRequest, error: OSError) -> HttpResponse:
    """A disk, or a quota, that takes nothing more; any other is an error of ours."""
    if error.errno not in _FULL:
        return _unexpected(request, error)
    logger.warning("a file could not be written: %s", error)
    return Problem(507, "the disk of the hud is full; try again", retry_after_s=30).response()


@api.exception_handler(Exception)
def _unexpected(request: HttpRequest, error: Exception) -> HttpResponse:
    logger.error("unexpected error on %s", request.path, exc_info=error)
    return Problem(500, "an error of ours; it is in the log").response()
