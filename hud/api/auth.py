"""Keys and scopes of the API. A session cookie permits reading only."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from django.conf import settings
from django.http import HttpRequest
from ninja.security.base import SecuritySchema

from hud.accounts import rate_limit
from hud.accounts.keys import find_key, take_bytes, take_call
from hud.models import ApiKey, Host
from hud.problems import Problem


def key_of(request: HttpRequest) -> ApiKey | None:
    """Return the request's key, None if it has none. Raise Problem 401 for an invalid key, 429 after too many
    of them from one address."""
    header = request.headers.get("Authorization", "")
    if not header:
        return None
    scheme, _, secret = header.partition(" ")
    key = find_key(secret.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        count_guess(request)
        raise Problem(401, "this key is unknown, revoked or expired")
    return key


def count_guess(request: HttpRequest) -> None:
    """Count a wrong key or token. Raise Problem 429 after too many from one address."""
    wait_s = rate_limit.KEYS.take(rate_limit.address_of(request))
    if wait_s:
        raise Problem(429, "too many wrong keys came from this address", retry_after_s=wait_s)


class Key:
    """A check for ninja's `auth=`, with its OpenAPI description."""

    openapi_security_schema: ClassVar = SecuritySchema(
        type="http", scheme="bearer", description="A key of this hud: `Authorization: Bearer KEY`"
    )

    def __init__(self, check: Callable[[HttpRequest], ApiKey | bool]) -> None:
        self._check = check

    def __call__(self, request: HttpRequest) -> ApiKey | bool:
        return self._check(request)


def scope(name: str) -> Key:
    """Require a valid key with this scope; admin has every scope but host."""

    def check(request: HttpRequest) -> ApiKey:
        key = key_of(request)
        if key is None:
            raise Problem(401, "this needs a key: Authorization: Bearer KEY")
        if name not in key.scopes and not ("admin" in key.scopes and name != "host"):
            raise Problem(403, f"this key has not the scope {name}")
        return key

    return Key(check)


@Key
def reader(request: HttpRequest) -> ApiKey | bool:
    """Permit public reading, else keys with the scope read and signed-in people."""
    key = key_of(request)
    if key is not None:
        if {"read", "admin"} & set(key.scopes) or settings.HUD_PUBLIC_READ:
            return key
        raise Problem(403, "this key has not the scope read")
    if settings.HUD_PUBLIC_READ or request.user.is_authenticated:
        return True
    raise Problem(401, "reading needs a key: Authorization: Bearer KEY")


def spend_call(request: HttpRequest, per_minute: int) -> None:
    """Count a call against the key's allowance. Raise Problem 429 with the seconds to wait."""
    wait_s = take_call(request.auth, per_minute)  # type: ignore[attr-defined]
    if wait_s:
        raise Problem(429, f"this key may make {per_minute} such calls a minute", retry_after_s=wait_s)


def spend_bytes(request: HttpRequest, sent_bytes: int, per_day: int, *, status: int = 429) -> None:
    """Count bytes against the quota of the request's key. Raise Problem 429 or 507 where it is used up."""
    wait_s = take_bytes(request.auth, sent_bytes, per_day)  # type: ignore[attr-defined]
    if wait_s:
        detail = f"this key may send {per_day} bytes a day (UTC), and they are used up"
        raise Problem(status, detail, retry_after_s=wait_s, code="quota")


def who(request: HttpRequest) -> str:
    """Return the caller's name in the audit."""
    key: ApiKey = request.auth  # type: ignore[attr-defined]  # set by ninja from the check above
    return f"key {key.prefix}"


def host_of(request: HttpRequest) -> Host:
    """Return the attached host of the request's key. Raise Problem 403 if it has none."""
    key: ApiKey = request.auth  # type: ignore[attr-defined]  # set by ninja from the check above
    if key.host is None or key.host.detached_at is not None:
        raise Problem(403, "this key belongs to no attached host")
    return key.host
