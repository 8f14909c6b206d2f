"""Login, logout, and the API keys."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from hud.accounts.keys import revoke_key
from hud.models import ApiKey
from hud.pages import data

ROWS = 200

login = LoginView.as_view(template_name="keys/login.html", redirect_authenticated_user=True)
logout = LogoutView.as_view()


@require_safe
@login_required
def key_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    found = ApiKey.objects.select_related("host").order_by("-created")[:ROWS]
    if data_format:
        return data.answer(data_format, "keys", [_row(key) for key in found])
    return render(request, "keys/keys.html", {"keys": list(found), "rows": ROWS, "now": timezone.now()})


def _row(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "scopes": " ".join(key.scopes),
        "host": key.host.name if key.host else "",
        **{name: getattr(key, name) for name in ("created", "last_used", "expires", "revoked")},
    }


@require_POST
@login_required
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    key = get_object_or_404(ApiKey, pk=pk)
    revoke_key(key=key, who=request.user.get_username())
    messages.success(request, f"Revoked key {key}.")
    return redirect("keys")
