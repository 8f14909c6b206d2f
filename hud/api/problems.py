"""Every error of the API is RFC 9457 problem+json: title, status, detail, and the place of each fault."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import orjson
from django.http import HttpResponse

from hud.ingest.errors import Fault


class Problem(Exception):
    """Raised anywhere under the API, answered at its edge."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[Fault] = (),
        retry_after_s: int | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors
        self.retry_after_s = retry_after_s
        self.extra = extra

    def response(self) -> HttpResponse:
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.extra,
        }
        if self.errors:
            body["errors"] = [fault.to_json() for fault in self.errors]
        response = HttpResponse(
            orjson.dumps(body), status=self.status, content_type="application/problem+json"
        )
        if self.retry_after_s is not None:
            response["Retry-After"] = str(self.retry_after_s)
        if self.status == HTTPStatus.UNAUTHORIZED:
            response["WWW-Authenticate"] = "Bearer"
        return response
