"""The configuration of RQ's queues for django-rq.

Each accelerator has its own queue, made when a host attaches, but django-rq knows only the names in its
settings. So this mapping answers any name with the settings of `default`.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry


class Queues(dict[str, dict[str, Any]]):
    """`RQ_QUEUES`: the same configuration for any name; messages are JSON, never pickles."""

    def __init__(self, url: str) -> None:
        super().__init__(
            default={
                "URL": url,
                "SERIALIZER": "rq.serializers.JSONSerializer",
                "DEFAULT_TIMEOUT": -1,  # the runner enforces time limits
                "DEFAULT_RESULT_TTL": 0,  # PostgreSQL holds the results
            }
        )

    def __missing__(self, name: str) -> dict[str, Any]:
        return self["default"]


def connect() -> Redis:
    """Return a connection that gives up after a second; by default redis-py would retry for several."""
    return Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1, retry=Retry(NoBackoff(), 0)
    )
