"""Read bodies that are compressed with gzip or zstd, of several members or frames too.

Cut a large file of records into bodies that one request may carry. Standard library only.

JSON lines and a JSON list are read as a stream, so memory stays bounded by the pieces, not by the file.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from runner.formats.errors import Fault, MalformedUpload, UploadTooLarge

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAX_RATIO = 100  # inflated bytes for each byte on the wire
_STEP = 1024  # bytes that are inflated at once: to 32 MiB at most, with either
_MAX_WINDOW_BYTES = 2**27
_MOST_MEMBERS = 10_000  # an inflater for each: 3 million empty frames in a body would take minutes


def is_compressed(body: bytes) -> bool:
    return body.startswith((GZIP, ZSTD))


def inflate(body: bytes, limit: int) -> bytes:
    """Return the content. Raise MalformedUpload, or UploadTooLarge without holding much beyond the limit."""
    import zstandard

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


_READ = 1 << 20  # characters read at a time
_BETWEEN = re.compile(r"[ \t\r\n,]*")


class CannotSplit(ValueError):
    """The file is neither JSON lines nor a JSON list, or one record of it is larger than a body may be."""


def split(path: Path, limit_bytes: int) -> Iterator[bytes]:
    """Yield bodies of at most `limit_bytes`, each of whole records in their order. Raise CannotSplit."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig") as file:
        start = file.read(_READ).lstrip()
        file.seek(0)
        if start.startswith("[") and not _is_line(start):
            yield from _grouped(elements(file), limit_bytes, b"[", b",", b"]")
        elif start.startswith(("{", "[")):
            lines = (line.strip().encode() for line in file if line.strip())
            yield from _grouped(lines, limit_bytes, b"", b"\n", b"\n")
        else:
            raise CannotSplit("only JSON lines and JSON lists can be cut into pieces")


def _is_line(start: str) -> bool:
    """Return whether the first line is a whole JSON value: lines of lists, not one list over many lines."""
    line, _newline, rest = start.partition("\n")
    try:
        json.loads(line)
    except ValueError:
        return False
    return bool(rest.strip())


def elements(file: IO[str]) -> Iterator[bytes]:
    """Yield the source text of each element of one JSON list."""
    decoder = json.JSONDecoder()
    buffer, place = file.read(_READ).lstrip(), 1  # behind the bracket
    while True:
        place = _BETWEEN.match(buffer, place).end()  # type: ignore[union-attr]  # the pattern also matches an empty string
        if buffer.startswith("]", place):
            return
        try:
            _value, end = decoder.raw_decode(buffer, place)
        except ValueError:
            end = len(buffer)
        if end < len(buffer):
            yield buffer[place:end].encode()
            place = end
            continue
        more = file.read(_READ)  # a value at the end of the buffer may be incomplete
        if not more:
            raise CannotSplit("the JSON list is incomplete")
        buffer, place = buffer[place:] + more, 0


def _grouped(
    records: Iterator[bytes], limit_bytes: int, head: bytes, between: bytes, tail: bytes
) -> Iterator[bytes]:
    group: list[bytes] = []
    size = len(head) + len(tail)
    for record in records:
        if len(head) + len(record) + len(tail) > limit_bytes:
            raise CannotSplit(f"one record has {len(record)} bytes; a body may have {limit_bytes}")
        if group and size + len(between) + len(record) > limit_bytes:
            yield head + between.join(group) + tail
            group, size = [], len(head) + len(tail)
        group.append(record)
        size += len(between) + len(record)
    if group:
        yield head + between.join(group) + tail
