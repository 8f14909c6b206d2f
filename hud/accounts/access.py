"""Read access to pages. The API checks keys itself (`hud/api/auth.py`)."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse

_OPEN = ("/login/", "/static/", "/api/", "/healthz", "/readyz", "/metrics")
GetResponse = Callable[[HttpRequest], HttpResponse]


class ReadAccessMiddleware:
    """Redirect visitors to the login unless reading is public."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.HUD_PUBLIC_READ or request.path.startswith(_OPEN) or request.user.is_authenticated:
            return self.get_response(request)
        return redirect_to_login(request.get_full_path())
