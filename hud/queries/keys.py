"""Keys of programs, as a page may show them."""

from __future__ import annotations

from hud.models import ApiKey

ROWS = 200


def read() -> list[ApiKey]:
    """The newest keys, in 1 statement."""
    return list(ApiKey.objects.select_related("host").order_by("-created")[:ROWS])
