"""What the head of every page shows."""

from functools import lru_cache
from typing import Any

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from hud.judging.backlog import waiting
from hud.judging.regressions.counts import Scope, count
from hud.models import NIGHTLY
from hud.pages.query_string import without
from hud.points.streams import Activity, front, with_results
from hud.tables.formatting import ago, moment
from hud.tables.html import element, join, link, span
from hud.templatetags.commit_tags import path

register = template.Library()
_MOST_STREAMS = 8


@register.simple_tag(takes_context=True)
def navigation(context: Any, here: str | None) -> SafeString:
    """Return the links to the pages in this one's stream, else in the front one, with how many causes wait
    for somebody: of what the page is about where it counts them, else of the stream, 1 statement."""
    counts = context.get("counts_of_page") or count(Scope(context.get("stream") or front()))
    in_stream = context.get("in_stream", "")
    return _links(here, counts.causes, in_stream, context.get("query_of_counts", in_stream))


@lru_cache(maxsize=256)
def _links(here: str | None, causes: int, in_stream: str, of_causes: str) -> SafeString:
    """Return the same text again, of which each page would draw 20 addresses: 0.8 ms."""
    about = {"here": here, "causes": causes, "in_stream": in_stream, "of_causes": of_causes}
    return render_to_string("parts/nav.html", about)


@register.simple_tag(takes_context=True)
def other_parameters(context: Any, *names: str) -> str:
    """Return the page's query without some names, after an ``&``, for the many links of a table that set
    these: `querystring` copies the query for each."""
    return without(context["request"].GET, *names)


@register.simple_tag(takes_context=True)
def stream_picker(context: Any) -> SafeString:
    """Return the streams with their newest results: this page's own, the chosen front one and `nightly`, then
    the newest, and what the judge has yet to judge of this one: 1 statement, 2 while something waits. A page
    of one run leads to the overview of another stream."""
    stream, request = context["stream"], context["request"]

    def place(one: Activity) -> tuple[bool, bool, bool]:
        return one.pk != stream.pk, not one.is_front, one.name != NIGHTLY

    shown = sorted(with_results(), key=place)
    of_one = request.resolver_match.kwargs.keys() & {"pk"} and request.resolver_match.url_name != "experiment"
    address = path("overview") if of_one or request.method != "GET" else request.path
    links: list[object] = [
        link(
            f"{address}?stream={one.name}",
            join(one.name, ago(one.newest)),
            aria_current="true" if one.pk == stream.pk else "",
            title=one.title,
        )
        for one in shown[:_MOST_STREAMS]
    ]
    more = f"{len(shown) - _MOST_STREAMS} more" if len(shown) > _MOST_STREAMS else "All"
    links.append(link(path("streams"), more))
    if any(one.may_wait for one in shown) and (backlog := waiting(stream.pk)).series:
        times = (
            ("since", moment(backlog.since), "until about", moment(backlog.until)) if backlog.since else ()
        )
        links.append(span(join(backlog.series, "series wait to be judged", *times), "catching-up"))
    return element("nav", join(element("span", "Stream"), *links), css="streams", aria_label="Streams")
