"""django-rq's pages of queues, under `/django-rq/`."""

import json
from typing import Any

from django.core.cache.backends.base import BaseCache
from django.http import Http404, HttpRequest
from django.utils.deprecation import MiddlewareMixin
from redis import Redis
from rq.exceptions import NoSuchJobError
from rq.job import Job

from hud.hosts import queues
from runner.schema.wake_up import FUNCTION

_CALL = json.dumps([FUNCTION, None, [], {}]).encode()
_SHOWN = (b"created_at", b"enqueued_at", b"origin", b"description", b"status")
_SHOWN_BYTES = 1000


class InertJobs(BaseCache):
    """The connection of the pages, which django-rq takes from a cache: jobs read through it name no code.

    The pages read jobs by RQ's own class and defaults, which no setting changes. They would inflate a job to
    any size, load its pickles and call its failure callback, whoever put it into Redis.
    """

    def __init__(self, _location: str, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)

    def get_master_client(self) -> Redis:
        redis = queues.connect()
        read = redis.response_callbacks.get("HGETALL", dict)

        def read_inert(*answer: Any, **options: Any) -> dict[bytes, bytes]:
            fields = read(*answer, **options)
            return _inert(fields, redis) if b"data" in fields else fields  # others are no jobs

        redis.set_response_callback("HGETALL", read_inert)
        return redis


def _inert(job: dict[bytes, bytes], redis: Redis) -> dict[bytes, bytes]:
    """Return the fields of a job that pages show, with a harmless call; only that if they are unreadable."""
    call = {b"data": _CALL}
    shown = call | {name: job[name][:_SHOWN_BYTES] for name in _SHOWN if job.get(name)}
    try:
        Job("unread", connection=redis).restore(shown)
    except ValueError:
        return call
    return shown


class UnknownIdMiddleware(MiddlewareMixin):
    """Answer 404 for the id of a queue, job, worker or scheduler that django-rq does not find."""

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        of_django_rq = request.resolver_match is not None and request.resolver_match.app_name == "django_rq"
        if of_django_rq and isinstance(error, NoSuchJobError | IndexError | ValueError):
            raise Http404(str(error)) from error
