"""The message in Redis that wakes an accelerator: an RQ job with one argument, signed in its id.

It says only that there is work: what to do is claimed over HTTP. The signature is made with the digest of the
host's key, so that nobody who can write to Redis can wake a host.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib

FUNCTION = "runner.host.jobs.work"  # by name only: the web process never imports it
MESSAGE_BYTES = 4096
_SHOWN = (b"created_at", b"enqueued_at", b"origin", b"description", b"status")


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
