"""For load balancers: `/healthz` answers while the process lives, `/readyz` while it can work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse


def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 503 while the database does not answer or the data folder cannot be written."""
    wrong = [problem for problem in (_database_problem(), _disk_problem()) if problem]
    return JsonResponse({"status": "; ".join(wrong) or "ok"}, status=503 if wrong else 200)


class ProbeMiddleware:
    """Answer probes before all else: they come over plain HTTP and name an address, or nothing, as host."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        probe = {"/healthz": healthz, "/readyz": readyz}.get(request.path)
        if probe is None:
            return self._get_response(request)
        answer = probe(request)
        answer["Content-Length"] = str(len(answer.content))  # for the connection to stay open
        return answer


def _database_problem() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM hud_metric LIMIT 1")
    except (DatabaseError, InterfaceError):
        return "the database does not answer"
    return ""


def _disk_problem() -> str:
    try:
        with tempfile.TemporaryFile(dir=settings.HUD_DATA) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"the data folder cannot be written: {error.strerror}"
    return ""
