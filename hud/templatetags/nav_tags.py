"""What the head of every page shows."""

from __future__ import annotations

from functools import lru_cache

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from hud.pages.regressions.tabs import IS_WAITING, WAITING
from hud.sql import fetch_tuples

register = template.Library()


@register.simple_tag
def navigation(here: str | None) -> SafeString:
    """Return the links to the pages, with how many regressions wait for somebody: 1 statement."""
    statement = f"SELECT count(*) FROM hud_regression WHERE {IS_WAITING}"  # noqa: S608 — a constant  # nosec B608
    ((count,),) = fetch_tuples(statement, {"waiting": list(WAITING)})
    return _links(here, count)


@lru_cache(maxsize=256)
def _links(here: str | None, waiting: int) -> SafeString:
    return render_to_string("parts/nav.html", {"here": here, "open": waiting})
