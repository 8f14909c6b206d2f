"""Error pages; under the API an error is problem+json."""

import sys
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.problems import Problem, passing_problem

API = "/api/"
_WORDS = {
    400: "bad request",
    403: "not allowed",
    404: "not found",
    500: "internal error; the server's log has the details",
    503: "the database is unavailable; try again",
}


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 503 with `Retry-After` for an error that passes, such as a database that does not answer; else
    500."""
    return _answer(request, status=503 if passing_problem(sys.exc_info()[1]) else 500)


def _answer(request: HttpRequest, exception: Exception | None = None, *, status: int) -> HttpResponse:
    retry_after_s = 5 if status == 503 else None
    if request.path.startswith(API):
        return Problem(status, _WORDS[status], retry_after_s=retry_after_s).response()
    response = render(request, f"{status}.html", status=status)
    if retry_after_s is not None:
        response["Retry-After"] = str(retry_after_s)
    return response


bad_request, forbidden, not_found = (partial(_answer, status=status) for status in (400, 403, 404))
