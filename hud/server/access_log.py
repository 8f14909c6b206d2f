"""What the web was asked: figures for `/metrics`; with `HUD_ACCESS_LOG` a line of JSON for each request."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import Counter, Histogram

from hud.accounts.access import address_of

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
# Of this node; a view is named as in hud/urls.py, static files and unknown addresses have none
REQUESTS = Counter(
    "hud_http_requests", "Requests by view, method and status.", ["view", "method", "status"], registry=None
)
SECONDS = Histogram(
    "hud_http_request_duration_seconds",
    "From a request's arrival to its answer's head, by view.",
    ["view"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=None,
)
logger = logging.getLogger("hud.access")


class AccessLogMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began = time.monotonic()
        response = self._get_response(request)
        seconds = time.monotonic() - began
        view = request.resolver_match.view_name if request.resolver_match else ""
        method = request.method if request.method in _METHODS else "other"
        REQUESTS.labels(view, method, str(response.status_code)).inc()
        SECONDS.labels(view).observe(seconds)
        if settings.HUD_ACCESS_LOG:
            line = _line(request, response, view=view, ms=round(1000 * seconds, 1))
            logger.info("%s", orjson.dumps(line).decode())
        return response


def _line(request: HttpRequest, response: HttpResponse, **more: Any) -> dict[str, Any]:
    """Return who asked for what, without the query string, which may hold what nobody else should read."""
    key = getattr(request, "api_key", None)
    user = getattr(request, "_cached_user", None)  # None where nothing has asked for it
    arguments = request.resolver_match.kwargs if request.resolver_match else {}
    run = arguments.get("run_id") or (arguments.get("pk") if more["view"].startswith("run") else None)
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request": request.headers.get("X-Request-ID", "")[:64],
        "address": address_of(request),
        "method": request.method,
        "path": request.path,
        "status": response.status_code,
        "bytes": len(response.content) if not response.streaming else None,
        "user": user.get_username() if user else "",
        "key": key.prefix if key else "",
        "host": key.host.name if key and key.host else "",
        "run": run,
        "task": str(arguments.get("uid", "")),
        **more,
    }
    return {name: value for name, value in line.items() if value not in ("", None)}
