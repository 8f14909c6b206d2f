"""The message in Redis that wakes an accelerator: an RQ job with one argument, signed in its id.

It says only that there is work: what to do is claimed over HTTP. The signature is made with the digest of the
host's key, so that nobody who can write to Redis can wake a host.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from typing import Any

from redis.exceptions import ResponseError
from rq.exceptions import NoSuchJobError
from rq.job import Job

FUNCTION = "runner.host.jobs.work"  # by name only: the web process never imports it
MESSAGE_BYTES = 4096
_SHOWN = (b"created_at", b"enqueued_at", b"origin", b"description", b"status")


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


def sign(job_id: str, argument: str, *, key_digest: str, queue: str) -> str:
    """Return the id of a wake-up: an id of its own, and a signature of that, its queue and its argument, such
    as a run. In the id, hosts of an earlier release leave it alone.

    `key_digest` is the SHA-256 of the host's key, which the HUD stores and the host knows.
    """
    text = f"wake-up\0{queue}\0{job_id}\0{argument}"
    return f"{job_id}-{hmac.new(key_digest.encode(), text.encode(), 'sha256').hexdigest()}"


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def harmless_fields(message: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return of a job's fields those that name no code, its `data` inflated as far as a wake-up reaches.

    What is no JSON becomes a job without a function: RQ could load it as a pickle.
    """
    try:
        text = zlib.decompressobj().decompress(message.get(b"data", b"")[:MESSAGE_BYTES], MESSAGE_BYTES)
        data = json.dumps(json.loads(text))  # begins as no pickle does
    except (ValueError, zlib.error, RecursionError):
        data = '["?", null, [], {}]'
    shown = {name: message[name] for name in _SHOWN if len(message.get(name, b"")) in range(1, MESSAGE_BYTES)}
    return shown | {b"data": zlib.compress(data.encode())}
