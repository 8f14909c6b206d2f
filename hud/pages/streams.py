"""The stream of a page: from its address, which every link that a page makes names."""

from contextvars import ContextVar
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse

from hud.models import Stream
from hud.points import streams

_COOKIE = "stream"  # a person's last choice; it affects `/` only
_MONTH_S = 30 * 24 * 3600
_current: ContextVar[str] = ContextVar("stream", default="")


def of_request(request: HttpRequest) -> Stream:
    """Return the stream that the address names, else the front stream; on `/` the person's last choice comes
    before it. Raise Http404 for an unknown one."""
    name = request.GET.get("stream", "")
    last = request.COOKIES.get(_COOKIE, "") if request.path == "/" and not name else ""
    known = listed(request)
    stream = (streams.chosen(last, known) if last else None) or streams.chosen(name, known)
    if stream is None:
        raise Http404(f"no stream is called {name[:60]}")
    return enter(request, stream)


def listed(request: HttpRequest) -> list[Any]:
    """Return the streams that `hud.points.streams.listed` has, for data, which show none, the front one; read
    once for a request."""
    if not hasattr(request, "streams"):
        match = request.resolver_match
        has_head = not match or "data_format" not in match.kwargs
        request.streams = streams.listed() if has_head else [streams.front()]  # type: ignore[attr-defined]
    return request.streams  # type: ignore[attr-defined, no-any-return]


def enter(request: HttpRequest, stream: Stream) -> Stream:
    """Make it the stream of this page: of what its head shows and its links name."""
    request.stream = stream  # type: ignore[attr-defined]
    _current.set(stream.name)
    return stream


def of_experiment(request: HttpRequest, *ids: int) -> Stream:
    """Return the stream that the address of a page of these experiments names, else one that has results of
    them, the front stream before others. Raise Http404 for an unknown one."""
    stream = of_request(request)
    return stream if request.GET.get("stream") else enter(request, streams.with_experiments(ids, stream))


def name_in_links(request: HttpRequest) -> None:
    """Put the page's stream into its query, which links to parts and other views of the page repeat."""
    request.GET = request.GET.copy()  # type: ignore[assignment]
    request.GET["stream"] = request.stream.name  # type: ignore[attr-defined, misc]


def keep_choice(request: HttpRequest, response: HttpResponse) -> None:
    """Keep the stream that the address names as the person's last choice."""
    if request.GET.get("stream"):
        stream: Stream = request.stream  # type: ignore[attr-defined]
        response.set_cookie(_COOKIE, stream.name, max_age=_MONTH_S, samesite="Lax", httponly=True)


def link(address: str, **query: Any) -> str:
    """Return an address with the current page's stream, or another `stream`, and a query, without parts that
    are None or ''."""
    stream = query.pop("stream", None) or _current.get()
    parts = [f"stream={stream}"] if stream else []  # a name has nothing to escape
    if named := {name: value for name, value in query.items() if value not in (None, "")}:
        parts.append(urlencode(named))
    text = "&".join(parts)
    return f"{address}?{text}" if text else address


def context(request: HttpRequest) -> dict[str, Any]:
    """Give every template `stream`, and `in_stream`: the part of a query string that names it."""
    stream: Stream | None = getattr(request, "stream", None)
    return {"stream": stream, "in_stream": f"stream={stream.name}" if stream else ""}
