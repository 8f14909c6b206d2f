"""RQ's queues as django-rq wants them configured.

Each accelerator has its own queue, made when a host attaches; django-rq knows only the names in its settings.
So every name is known here, with the settings of `default`.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry


class Queues(dict[str, dict[str, Any]]):
    """`RQ_QUEUES`: any name has the default's configuration; messages are JSON, never pickles."""

    def __init__(self, url: str) -> None:
        super().__init__(
            default={
                "URL": url,
                "SERIALIZER": "rq.serializers.JSONSerializer",
                "DEFAULT_TIMEOUT": -1,  # launch.py owns time limits
                "DEFAULT_RESULT_TTL": 0,  # PostgreSQL holds the results
            }
        )

    def __missing__(self, name: str) -> dict[str, Any]:
        return self["default"]


def connect() -> Redis:
    """A connection that gives up after a second: redis-py would retry for seconds, and raise after that."""
    return Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1, retry=Retry(NoBackoff(), 0)
    )
