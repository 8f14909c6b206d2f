"""Error pages; under the API, and where a page's data are asked for, an error is problem+json."""

import sys
from functools import partial

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from hud.problems import Problem, passing_problem

API = "/api/"
DATA = (".json", ".csv")
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
    if request.path.startswith(API) or request.path.endswith(DATA):
        text = exception.args[0] if isinstance(exception, Http404) and exception.args else None
        detail = text if isinstance(text, str) else _WORDS[status]  # of an unknown address it is a dictionary
        return Problem(status, detail, retry_after_s=retry_after_s).response()
    response = render(request, f"{status}.html", status=status)
    if retry_after_s is not None:
        response["Retry-After"] = str(retry_after_s)
    return response


bad_request, forbidden, not_found = (partial(_answer, status=status) for status in (400, 403, 404))
