"""What the head of every page shows."""

from __future__ import annotations

from django import template

from hud.pages.regressions.tabs import IS_WAITING, WAITING
from hud.pages.sql import fetch_tuples

register = template.Library()


@register.simple_tag
def open_regressions() -> int:
    """Return how many regressions wait for somebody: 1 statement."""
    statement = f"SELECT count(*) FROM hud_regression WHERE {IS_WAITING}"  # noqa: S608 — a constant  # nosec B608
    ((count,),) = fetch_tuples(statement, {"waiting": list(WAITING)})
    return int(count)
