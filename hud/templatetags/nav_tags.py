"""What the head of every page shows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from hud.pages.regressions.tabs import IS_WAITING, WAITING
from hud.points.streams import front
from hud.sql import fetch_tuples

register = template.Library()


@register.simple_tag(takes_context=True)
def navigation(context: Any, here: str | None) -> SafeString:
    """Return the links to the pages in this one's stream, else in the front one, with how many of its
    regressions wait for somebody: 1 statement."""
    stream = context.get("stream") or front()
    statement = f"""
        SELECT count(*) FROM hud_regression r JOIN hud_series s ON s.id = r.series_id
        WHERE s.stream_id = %(stream)s AND {IS_WAITING}
        """  # noqa: S608 — a constant  # nosec B608
    ((count,),) = fetch_tuples(statement, {"stream": stream.pk, "waiting": list(WAITING)})
    return _links(here, count, context.get("in_stream", ""))


@lru_cache(maxsize=256)
def _links(here: str | None, waiting: int, in_stream: str) -> SafeString:
    query = f"?{in_stream}" if in_stream else ""
    return render_to_string("parts/nav.html", {"here": here, "open": waiting, "query": query})
