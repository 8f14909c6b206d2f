"""The caller of the API. `hud.accounts.access` has checked the key before a call begins."""

from collections.abc import Sequence
from typing import ClassVar

from django.http import HttpRequest
from ninja.security.base import SecuritySchema

from hud.accounts.keys import effective_scopes, name_of, take_bytes, take_call
from hud.ingest.deletion import may_delete
from hud.models import ApiKey, Host, Upload
from hud.problems import Problem


class Key:
    """Give calls the key of the request as `request.auth`, and describe it in the OpenAPI document."""

    openapi_security_schema: ClassVar = SecuritySchema(
        type="http", scheme="bearer", description="A key of this hud: `Authorization: Bearer KEY`"
    )

    def __call__(self, request: HttpRequest) -> ApiKey | bool:
        return request.api_key or True  # type: ignore[attr-defined]  # set by hud.accounts.access


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
    key: ApiKey = request.auth  # type: ignore[attr-defined]  # set by ninja from the key above
    return name_of(key)


def check_may_delete(request: HttpRequest, uploads: Sequence[Upload]) -> None:
    """Raise Problem 403 unless the key may delete what came in these uploads."""
    key: ApiKey = request.auth  # type: ignore[attr-defined]  # set by ninja from the key above
    if not may_delete(uploads, scopes=effective_scopes(key), owner_id=key.owner_id, key_id=key.pk):
        raise Problem(403, "without the scope run a key deletes its owner's uploads only, within a day")


def host_of(request: HttpRequest) -> Host:
    """Return the attached host of the request's key. Raise Problem 403 if it has none."""
    key: ApiKey = request.auth  # type: ignore[attr-defined]  # set by ninja from the key above
    if key.host is None or key.host.detached_at is not None:
        raise Problem(403, "this key belongs to no attached host")
    return key.host
