"""Compression of answers."""

from __future__ import annotations

import gzip
import io
import secrets

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.cache import patch_vary_headers

_LEVEL = 4
_LEAST_BYTES = 2000


class FasterGZipMiddleware(GZipMiddleware):
    """Compress whole answers at level 4: Django's 6 takes twice as long, a tenth of all time of a page, for
    a tenth fewer bytes."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        accepted = "gzip" in request.headers.get("accept-encoding", "") and "Content-Encoding" not in response
        if not isinstance(response, HttpResponse) or not accepted or len(response.content) < _LEAST_BYTES:
            return super().process_response(request, response)
        file_name = "a" * secrets.randbelow(self.max_random_bytes)  # against BREACH, as Django has it
        packed = io.BytesIO()
        with gzip.GzipFile(file_name, "wb", compresslevel=_LEVEL, fileobj=packed, mtime=0) as file:
            file.write(response.content)
        response.content = packed.getvalue()
        patch_vary_headers(response, ["Accept-Encoding"])
        response["Content-Encoding"], response["Content-Length"] = "gzip", str(len(response.content))
        return response
