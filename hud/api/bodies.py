"""JSON bodies, as strict as uploads are: no NaN, no key said twice, no NUL, which PostgreSQL cannot keep."""

from __future__ import annotations

from typing import Any

import orjson
from django.http import HttpRequest
from ninja.parser import Parser

from runner.formats import json_text


class StrictParser(Parser):
    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """Raises ValueError, which ninja makes a 400."""
        body = request.body.removeprefix(b"\xef\xbb\xbf")  # with which some editors begin a text
        value: dict[str, Any] = orjson.loads(body)
        json_text.refuse_nul(body)
        words = json_text.problem(body)
        if words:
            raise ValueError(words)
        return value
