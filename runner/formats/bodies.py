"""Cut a large file of records into bodies that one request may carry. Standard library only.

JSON lines and a JSON list are read as a stream, so memory stays bounded by the pieces, not by the file.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from runner.formats.format import is_value

_READ = 1 << 20  # characters read at a time
_PIECE_BYTES = 8 * 2**20
_BETWEEN = re.compile(r"[ \t\r\n,]*")


class CannotSplit(ValueError):
    """The file is neither JSON lines nor a JSON list, or one record of it is larger than a body may be."""


def run_id_of(path: Path) -> str:
    """Return the name of the run that the pieces of a file join."""
    with path.open("rb") as file:
        return f"file-{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


def split(path: Path, limit_bytes: int) -> Iterator[bytes]:
    """Yield bodies of at most `limit_bytes`, and 8 MiB, each of whole records in their order. Raise
    CannotSplit."""
    limit_bytes = min(limit_bytes, _PIECE_BYTES)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig") as file:
        start = file.read(_READ).lstrip()
        file.seek(0)
        first, _newline, rest = start.partition("\n")
        is_lines = is_value(first) and rest.strip()  # of lists, not one list over many lines
        if start.startswith("[") and not is_lines:
            yield from _grouped(elements(file), limit_bytes, b"[", b",", b"]")
        elif start.startswith(("{", "[")):
            lines = (line.strip().encode() for line in file if line.strip())
            yield from _grouped(lines, limit_bytes, b"", b"\n", b"\n")
        else:
            raise CannotSplit("only JSON lines and JSON lists can be cut into pieces")


def elements(file: IO[str]) -> Iterator[bytes]:
    """Yield the source text of each element of one JSON list."""
    decoder = json.JSONDecoder()
    buffer, position = file.read(_READ).lstrip(), 1  # behind the bracket
    while True:
        position = _BETWEEN.match(buffer, position).end()  # type: ignore[union-attr]  # the pattern also matches an empty string
        if buffer.startswith("]", position):
            return
        try:
            _value, end = decoder.raw_decode(buffer, position)
        except ValueError:
            end = len(buffer)
        if end < len(buffer):
            yield buffer[position:end].encode()
            position = end
            continue
        more = file.read(_READ)  # a value at the end of the buffer may be incomplete
        if not more:
            raise CannotSplit("the JSON list is incomplete")
        buffer, position = buffer[position:] + more, 0


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
