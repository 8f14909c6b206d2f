"""django-rq's pages of queues, under `/django-rq/`."""

from __future__ import annotations

from django.http import Http404, HttpRequest
from django.utils.deprecation import MiddlewareMixin
from rq.exceptions import NoSuchJobError


class UnknownIdMiddleware(MiddlewareMixin):
    """Answer 404 for the id of a queue, job, worker or scheduler that django-rq does not find."""

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        of_django_rq = request.resolver_match is not None and request.resolver_match.app_name == "django_rq"
        if of_django_rq and isinstance(error, NoSuchJobError | IndexError | ValueError):
            raise Http404(str(error)) from error
