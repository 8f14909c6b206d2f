"""Keys of programs, as a page may show them."""

from __future__ import annotations

from typing import Any

from hud.models import ApiKey

ROWS = 200


def row(key: ApiKey) -> dict[str, Any]:
    """A key as a program may see it: nothing of its secret but how it begins."""
    return {
        "name": key.name,
        "prefix": key.prefix,
        "scopes": " ".join(key.scopes),
        "host": key.host.name if key.host else "",
        "created": key.created,
        "last_used": key.last_used,
        "expires": key.expires,
        "revoked": key.revoked,
    }


def read() -> list[ApiKey]:
    """The newest keys, in 1 statement."""
    return list(ApiKey.objects.select_related("host").order_by("-created")[:ROWS])
