"""Messages between a host and the HUD beside records: the wake-up, and the fingerprint of an interpreter.

The wake-up is a message in Redis: an RQ job whose argument, a task, is signed in its id. It says only that
there is work: which task, and what to do, is claimed over HTTP. The signature is made with the digest of the
host's key, so that nobody who can write to Redis can wake a host.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

# Of agent and HUD, which also takes hosts of the one before. 2: a task says its compilation and its caches.
# 3: heartbeats and records say the runner's version.
PROTOCOL = 3
RELEASE = "0.1.0"
FUNCTION = "runner.host.jobs.work"  # a name that hosts expect; nobody imports it
CHANGED_INTERPRETER = "changed_interpreter"  # code of a task that ends for it
_COMMIT_DIGITS = 9
# An overlay, INTERPRETER@COMMIT: Python files of these folders at a commit, in front of those of its torch
OVERLAY_FOLDERS = ("torch/_inductor", "torch/_dynamo", "torch/_functorch", "torch/_export")
OVERLAYS_ALLOWED = {"overlays": "allowed"}  # the label of a host that takes them
MOST_OVERLAY_BYTES = 32 * 2**20  # packed; twice as many unpacked
_OVERLAY = re.compile(r"(.+)@([0-9a-f]{40})")
# A benchmark is arbitrary code: our own keys and what looks like a secret stay out of its environment.
_SECRET = re.compile(
    r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)|^(DATABASE|REDIS)_URL$|^PG|^HUD_",
    re.IGNORECASE,
)


def sources() -> dict[str, bytes]:
    """Return the files of the runner by their path below its folder."""
    folder = Path(__file__).resolve().parent.parent
    paths = (path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts and path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@cache
def version() -> str:
    """Return the runner's release, and a digest of its files: another one may measure otherwise."""
    digest = hashlib.sha256()
    for name, content in sources().items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"{RELEASE}+g{digest.hexdigest()[:8]}"


def sign(job_id: str, argument: str, *, key_digest: str, queue: str) -> str:
    """Return the id of a wake-up: an id of its own, and a signature of that, its queue and its argument.
    In the id, hosts of an earlier release leave it alone.

    `key_digest` is the SHA-256 of the host's key, which the HUD stores and the host knows.
    """
    text = f"wake-up\0{queue}\0{job_id}\0{argument}"
    return f"{job_id}-{hmac.new(key_digest.encode(), text.encode(), 'sha256').hexdigest()}"


def overlay_of(name: str) -> tuple[str, str]:
    """Return the interpreter and the commit that a name says, '' for one without overlay."""
    match = _OVERLAY.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def is_in_overlay(path: str) -> bool:
    parts = path.split("/")
    return path.endswith(".py") and "/".join(parts[:2]) in OVERLAY_FOLDERS and not {"", ".", ".."} & {*parts}


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names do not look like a secret."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name)}


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of an interpreter, which a run freezes: all of it is measured with the same packages.

    The torch and Triton, and a digest of the RECORD files of all packages; '' for what it has not.
    """

    torch: str = ""
    torch_git: str = ""
    triton: str = ""
    packages: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Fingerprint:
        return cls(**{field.name: str(value.get(field.name) or "") for field in fields(cls)})

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return what a comparison is about. Two hosts with the same wheels may differ in their RECORD files,
        which also list what an installer wrote."""
        return self.torch, self.torch_git, self.triton

    def __str__(self) -> str:
        commit = f" ({self.torch_git[:_COMMIT_DIGITS]})" if self.torch_git else ""
        parts = [f"torch {self.torch or 'missing'}{commit}", self.triton and f"triton {self.triton}"]
        return ", ".join(filter(None, [*parts, self.packages and f"packages {self.packages}"]))
