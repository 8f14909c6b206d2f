"""The limits."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe


@require_safe
def limits(request: HttpRequest, data_format: str = "") -> HttpResponse:
    return HttpResponse("")
