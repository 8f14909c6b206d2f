"""JSON as the formats without a fixed record read it: one value, a list, or a value on each line."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from hud.ingest.errors import BadUpload, Fault, MalformedUpload

_ANY = msgspec.json.Decoder()
_BYTE = re.compile(r"\(byte (\d+)\)")
_NUL = re.compile(rb"\\u0000|\x00")
_PEEK_BYTES = 1 << 16
ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Item(NamedTuple):
    """A JSON value with its place; `fault` where the line is none."""

    value: Any
    pointer: str
    line: int | None
    fault: Fault | None = None


def is_json(body: bytes) -> bool:
    return body[:_PEEK_BYTES].lstrip()[:1] in {b"[", b"{"}


def begins_with(body: bytes, *keys: str) -> bool:
    """True where the body begins like JSON and its first bytes name all of these keys."""
    start = body[:_PEEK_BYTES]
    return is_json(start) and all(f'"{key}"'.encode() in start for key in keys)


def items(body: bytes) -> Iterator[Item]:
    """Every value of the body. Raises MalformedUpload where it is no JSON, BadUpload for a NUL character."""
    refuse_nul(body)
    try:
        whole = _ANY.decode(body)
    except ERRORS as error:
        lines = body.splitlines()
        if sum(1 for line in lines if line.strip()) < 2:
            raise malformed(error, body) from error
        yield from _lines(lines, error, body)
        return
    if isinstance(whole, list):
        for index, value in enumerate(whole):
            yield Item(value, f"/{index}", None)
    else:
        yield Item(whole, "", None)


def first(body: bytes) -> Any:
    """The first value of the body, None where there is none."""
    try:
        return next((item.value for item in items(body) if item.fault is None), None)
    except BadUpload:
        return None


def finite(value: Any) -> float | None:
    """A JSON number as a double, None for what is no number or has no double."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def shortened(name: str, limit: int = 200) -> str:
    """A name within the limit: cut, with a digest that keeps two long ones apart."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name[: limit - 13]}#{digest}"


def _lines(lines: list[bytes], whole_error: Exception, body: bytes) -> Iterator[Item]:
    parsed = False
    wrong: list[Item] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = _ANY.decode(line)
        except ERRORS as error:
            item = Item(None, "", number, not_json(error, number))
            if parsed:
                yield item
            else:
                wrong.append(item)
            continue
        if not parsed:
            parsed = True
            yield from wrong
        yield Item(value, "", number)
    if not parsed:
        raise malformed(whole_error, body) from whole_error


def not_json(error: Exception, line: int) -> Fault:
    return Fault("", f"the line is not JSON: {error}", line, malformed=True)


def malformed(error: Exception, body: bytes) -> MalformedUpload:
    found = _BYTE.search(str(error))
    line = body[: int(found[1])].count(b"\n") + 1 if found else None
    return MalformedUpload("the body is not JSON", [Fault("", str(error), line, malformed=True)])


def refuse_nul(body: bytes) -> None:
    """PostgreSQL stores no NUL character, so a text that holds one cannot be kept as it came."""
    if not _NUL.search(body):
        return
    for number, line in enumerate(body.splitlines(), start=1):
        if b"\0" in line or (b"\\u0000" in line and _holds_nul(line)):
            raise BadUpload("a text holds a NUL character", [Fault("", "NUL character", number)])


def _holds_nul(line: bytes) -> bool:
    try:
        value: Any = _ANY.decode(line)
    except ERRORS:
        return True  # one line of a pretty-printed body: the escape cannot be told from its like, so refuse
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str) and "\0" in item:
            return True
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            stack += item
    return False
