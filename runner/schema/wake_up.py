"""The message in Redis that wakes an accelerator: an RQ job whose argument, a task, is signed in its id.

It says only that there is work: which task, and what to do, is claimed over HTTP. The signature is made with
the digest of the host's key, so that nobody who can write to Redis can wake a host.
"""

import hashlib
import hmac

FUNCTION = "runner.host.jobs.work"  # by name only: the web process never imports it


def sign(job_id: str, argument: str, *, key_digest: str, queue: str) -> str:
    """Return the id of a wake-up: an id of its own, and a signature of that, its queue and its argument.
    In the id, hosts of an earlier release leave it alone.

    `key_digest` is the SHA-256 of the host's key, which the HUD stores and the host knows.
    """
    text = f"wake-up\0{queue}\0{job_id}\0{argument}"
    return f"{job_id}-{hmac.new(key_digest.encode(), text.encode(), 'sha256').hexdigest()}"


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
