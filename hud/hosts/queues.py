"""The configuration of RQ's queues for django-rq.

Each accelerator has its own queue, made when a host attaches; django-rq takes the names from its settings.
So the settings read them from the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from _collections_abc import dict_items


class Queues(dict[str, dict[str, Any]]):
    """`RQ_QUEUES`: the same configuration for any name; messages are JSON, never pickles.

    `items` are `default` and the queues of attached accelerators: those that `/django-rq/` lists.
    """

    def __init__(self) -> None:
        super().__init__(
            default={
                "USE_REDIS_CACHE": "inert_jobs",
                "SERIALIZER": "rq.serializers.JSONSerializer",
            }
        )

    def __missing__(self, name: str) -> dict[str, Any]:
        return self["default"]

    def items(self) -> dict_items[str, dict[str, Any]]:
        from hud.models import Accelerator  # noqa: PLC0415 — settings come before models

        attached = Accelerator.objects.filter(host__detached_at__isnull=True)
        return {name: self[name] for name in ("default", *(one.queue for one in attached))}.items()


def connect() -> Redis:
    """Return a connection that gives up after a second; by default redis-py would retry for several."""
    return Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1, retry=Retry(NoBackoff(), 0)
    )
