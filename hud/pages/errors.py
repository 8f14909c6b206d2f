"""What a visitor, or a program, sees when something goes wrong. Under the API it is problem+json."""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.problems import Problem

API = "/api/"
_WORDS = {
    400: "bad request",
    403: "not allowed",
    404: "not found",
    500: "internal error; the server's log has the details",
    503: "the database is unavailable; try again",
}


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 404)


def server_error(request: HttpRequest) -> HttpResponse:
    """A database that is away is a 503 that says when to come back."""
    away = isinstance(sys.exc_info()[1], OperationalError | InterfaceError)
    return _answer(request, 503 if away else 500)


def _answer(request: HttpRequest, status: int) -> HttpResponse:
    retry_after_s = 5 if status == 503 else None
    if request.path.startswith(API):
        return Problem(status, _WORDS[status], retry_after_s=retry_after_s).response()
    response = render(request, f"{status}.html", status=status)
    if retry_after_s is not None:
        response["Retry-After"] = str(retry_after_s)
    return response
