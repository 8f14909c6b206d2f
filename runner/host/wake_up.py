"""The job class of the RQ worker of a host."""

from __future__ import annotations

import hmac
import json
from typing import Any

from redis.exceptions import ResponseError
from rq.exceptions import NoSuchJobError
from rq.job import Job

from runner.schema.wake_up import FUNCTION, MESSAGE_BYTES, harmless_fields, sign


class WakeUp(Job):  # type: ignore[misc]  # rq has no annotations that mypy accepts
    """An RQ job that takes of its message only what `harmless_fields` returns.

    RQ's own class imports and calls the function, callbacks and webhooks that a message names.
    """

    @classmethod
    def fetch(cls, id: str, connection: Any, serializer: Any = None) -> WakeUp:  # noqa: A002 - RQ's name
        """Return the job with that id. Raise NoSuchJobError for anything else, which RQ skips."""
        try:
            job: WakeUp = super().fetch(id, connection=connection, serializer=serializer)
        except (ValueError, TypeError, AttributeError, ResponseError) as error:
            raise NoSuchJobError(f"job {id!r} is no wake-up: {error}") from error
        return job

    def refresh(self) -> None:
        """Read the message's bytes alone. Raise NoSuchJobError for none, or for more than a wake-up has."""
        if not 0 < self.connection.hstrlen(self.key, "data") <= MESSAGE_BYTES:
            raise NoSuchJobError(f"job {self.id!r} is no wake-up")
        self.restore(harmless_fields({b"data": self.connection.hget(self.key, "data") or b""}))

    def is_signed(self, key_digest: str, queue: str) -> bool:
        """Return whether the message asks for `FUNCTION` with one argument, and its id signs that."""
        try:
            function, instance, arguments, named = json.loads(self.data)
            (argument,) = arguments
        except (ValueError, TypeError):
            return False
        signed = sign(self.id.rpartition("-")[0], str(argument), key_digest=key_digest, queue=queue)
        same = hmac.compare_digest(self.id.encode(), signed.encode())
        return same and function == FUNCTION and instance is None and not named

    def perform(self) -> None:
        """Raise PermissionError: only RQ's own workers call this, for which the job is not meant."""
        raise PermissionError("a wake-up carries no code; runner.host.worker answers it")
