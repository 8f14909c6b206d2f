"""The configuration of RQ's queues for django-rq, and what its pages under `/django-rq/` may do.

Each accelerator has its own queue, made when a host attaches; django-rq takes the names from its settings.
So the settings read them from the database.
"""

import json
from typing import Any

from django.conf import settings
from django.core.cache.backends.dummy import DummyCache
from django.http import Http404, HttpRequest
from django.utils.deprecation import MiddlewareMixin
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq.exceptions import NoSuchJobError
from rq.job import Job

from runner.schema.protocol import FUNCTION

_CALL = json.dumps([FUNCTION, None, [], {}]).encode()
_SHOWN = (b"created_at", b"enqueued_at", b"origin", b"description", b"status")
_SHOWN_BYTES = 1000


class Queues(dict[str, dict[str, Any]]):
    """`RQ_QUEUES`: the same configuration for any name; messages are JSON, never pickles.

    `items` are `default` and the queues of attached accelerators: those that `/django-rq/` lists.
    """

    def __init__(self) -> None:
        super().__init__(
            default={"USE_REDIS_CACHE": "inert_jobs", "SERIALIZER": "rq.serializers.JSONSerializer"}
        )

    def __missing__(self, name: str) -> dict[str, Any]:
        return self["default"]

    def items(self) -> Any:
        from hud.models import Accelerator  # noqa: PLC0415 — settings come before models

        attached = Accelerator.objects.filter(host__detached_at__isnull=True)
        return {name: self[name] for name in ("default", *(host.queue for host in attached))}.items()


def connect() -> Redis:
    """Return a connection that gives up after a second; by default redis-py would retry for several."""
    return Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1, retry=Retry(NoBackoff(), 0)
    )


class InertJobs(DummyCache):
    """The connection of the pages, which django-rq takes from a cache: jobs read through it name no code.

    The pages read jobs by RQ's own class and defaults, which no setting changes. They would inflate a job to
    any size, load its pickles and call its failure callback, whoever put it into Redis.
    """

    def get_master_client(self) -> Redis:
        redis = connect()
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
