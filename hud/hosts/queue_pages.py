"""django-rq's pages of queues, under `/django-rq/`."""

from __future__ import annotations

from collections.abc import Callable

from django.http import Http404, HttpRequest, HttpResponse
from rq.exceptions import NoSuchJobError


class UnknownIdMiddleware:
    """Answer 404 for the id of a queue, job, worker or scheduler that django-rq does not find."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        of_django_rq = request.resolver_match is not None and request.resolver_match.app_name == "django_rq"
        if of_django_rq and isinstance(error, NoSuchJobError | IndexError | ValueError):
            raise Http404(str(error)) from error
