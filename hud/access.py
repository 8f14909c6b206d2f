"""Who may read pages, and what a visitor sees when something goes wrong.

The API has its own door (`hud/api/auth.py`) and its own errors (problem+json).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

logger = logging.getLogger(__name__)
_OPEN = ("/login/", "/static/", "/api/", "/healthz", "/readyz")
GetResponse = Callable[[HttpRequest], HttpResponse]


class ReadAccessMiddleware:
    """Sends a visitor to the login where reading is not public."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.HUD_PUBLIC_READ or request.path.startswith(_OPEN) or request.user.is_authenticated:
            return self.get_response(request)
        return redirect_to_login(request.get_full_path())


class ErrorPagesMiddleware:
    """A database that is away is a 503 that says so and when to come back, not a 500."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, OperationalError | InterfaceError):
            return None
        logger.warning("the database is away: %s", exception)
        response = render(request, "503.html", status=503)
        response["Retry-After"] = "5"
        return response
