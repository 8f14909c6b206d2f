"""Read bodies that are compressed with gzip or zstd, of several members or frames too."""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import zstandard
from django.conf import settings

from runner.formats.errors import Fault, MalformedUpload, UploadTooLarge

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAX_RATIO = 100  # inflated bytes for each byte on the wire
_STEP = 1024  # bytes that are inflated at once: to 32 MiB at most, with either
_MAX_WINDOW_BYTES = 2**27
_MOST_MEMBERS = 10_000  # an inflater for each: 3 million empty frames in a body would take minutes


def is_compressed(body: bytes) -> bool:
    return body.startswith((GZIP, ZSTD))


def inflate(body: bytes, limit: int | None = None) -> bytes:
    """Return the content, up to the limit of an upload by default. Raise MalformedUpload, or UploadTooLarge
    without holding much beyond the limit."""
    limit = settings.HUD_MAX_BODY_BYTES if limit is None else limit
    kind = "zstd" if body.startswith(ZSTD) else "gzip"
    make: Callable[[], Any] = partial(zlib.decompressobj, zlib.MAX_WBITS | 16)
    if kind == "zstd":
        make = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj
    content, inflater, members = bytearray(), None, 0
    for start in range(0, len(body), _STEP):
        rest = body[start : start + _STEP]
        while rest:
            inflater = inflater or make()
            try:
                content += inflater.decompress(rest)
            except (zlib.error, zstandard.ZstdError) as error:
                fault = Fault("", str(error), malformed=True)
                raise MalformedUpload(
                    f"the body is not {kind}, or is followed by something else", [fault]
                ) from error
            if len(content) > limit or len(content) > _MAX_RATIO * max(len(body), 1024):
                raise UploadTooLarge(
                    f"the body is over {limit} bytes, or over {_MAX_RATIO} times its {kind} size"
                )
            rest = inflater.unused_data if inflater.eof else b""
            if inflater.eof:
                inflater, members = None, members + 1
                if members > _MOST_MEMBERS:
                    raise UploadTooLarge(f"the body has over {_MOST_MEMBERS} {kind} parts")
    if inflater is not None or not body:
        raise MalformedUpload(f"the {kind} body is cut off", [Fault("", "it ends too early", malformed=True)])
    return bytes(content)
