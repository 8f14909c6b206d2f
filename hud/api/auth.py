"""The caller of the API. `hud.accounts.access` has checked the key before a call begins."""

from collections.abc import Sequence
from typing import ClassVar

from django.http import HttpRequest
from ninja.security.base import SecuritySchema

from hud.accounts.keys import effective_scopes, name_of
from hud.corrections.deletion import may_delete
from hud.models import ApiKey, Host, Upload
from hud.problems import Problem


class Key:
    """Give calls the key of the request as `request.auth`, and describe it in the OpenAPI document."""

    openapi_security_schema: ClassVar = SecuritySchema(
        type="http", scheme="bearer", description="A key of this hud: `Authorization: Bearer KEY`"
    )

    def __call__(self, request: HttpRequest) -> ApiKey | bool:
        return request.api_key or True  # type: ignore[attr-defined]  # set by hud.accounts.access


def caller_key(request: HttpRequest) -> ApiKey:
    """Return the caller's key, in a call that needs one."""
    key: ApiKey = request.auth  # type: ignore[attr-defined]  # set by ninja from the key above
    return key


def who(request: HttpRequest) -> str:
    """Return the caller's name in the audit."""
    return name_of(caller_key(request))


def check_may_delete(request: HttpRequest, uploads: Sequence[Upload]) -> None:
    """Raise Problem 403 unless the key may delete what came in these uploads."""
    key = caller_key(request)
    if not may_delete(uploads, scopes=effective_scopes(key), owner_id=key.owner_id, key_id=key.pk):
        raise Problem(403, "without the scope run a key deletes its owner's uploads only, within a day")


def host_of(request: HttpRequest) -> Host:
    """Return the attached host of the request's key. Raise Problem 403 if it has none."""
    key = caller_key(request)
    if key.host is None or key.host.detached_at is not None:
        raise Problem(403, "this key belongs to no attached host")
    return key.host
