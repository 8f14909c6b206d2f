"""JSON in its containers: one value, a list, a value or a list on each line."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from runner.formats import strict
from runner.formats.errors import BadUpload, Fault, MalformedUpload

_T = TypeVar("_T")
Text = bytes | msgspec.Raw  # of one JSON value
_ANY = msgspec.json.Decoder()
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
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


def read(body: bytes, one: Callable[[Text, str, int | None], _T]) -> Iterator[_T | Fault]:
    """What `one` makes of each value's text, pointer and line; a line that is no JSON is a fault.

    `one` may raise ERRORS for a text that is no JSON. Raises MalformedUpload where the body is none,
    BadUpload for a NUL character.
    """
    refuse_nul(body)
    try:
        pieces = _pieces(body)
    except ERRORS as error:
        lines = body.splitlines()
        if sum(1 for line in lines if line.strip()) < 2:
            raise _malformed(error, body) from error
        yield from _read_lines(lines, one, error, body)
        return
    try:
        for text, pointer in pieces:
            yield one(text, pointer, None)
    except ERRORS as error:
        raise _malformed_inside(error, body) from error


def _pieces(body: bytes) -> list[tuple[Text, str]]:
    """The values of a list, or the one value. Raises one of ERRORS for what is no JSON."""
    try:
        return [(item, f"/{index}") for index, item in enumerate(_RAW_LIST.decode(body))]
    except msgspec.ValidationError:
        _ANY.decode(body)
        return [(body, "")]


def _read_lines(
    lines: list[bytes], one: Callable[[Text, str, int | None], _T], whole_error: Exception, body: bytes
) -> Iterator[_T | Fault]:
    parsed = False
    wrong: list[Fault] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = [one(text, pointer, number) for text, pointer in _pieces(line)]
        except ERRORS as error:
            fault = Fault("", f"the line is not JSON: {error}", number, malformed=True)
            if parsed:
                yield fault
            else:
                wrong.append(fault)
            continue
        if not parsed:
            parsed = True
            yield from wrong
        yield from found
    if not parsed:
        raise _malformed(whole_error, body) from whole_error


def _malformed(error: Exception, body: bytes) -> MalformedUpload:
    found = _BYTE.search(str(error))
    line = body[: int(found[1])].count(b"\n") + 1 if found else None
    return MalformedUpload("the body is not JSON", [Fault("", str(error), line, malformed=True)])


def _malformed_inside(error: Exception, body: bytes) -> MalformedUpload:
    """The place of what is wrong in a piece, found by reading the whole."""
    try:
        _ANY.decode(body)
    except ERRORS as whole:
        return _malformed(whole, body)
    return _malformed(error, body)


def refused(text: Text, pointer: str, line: int | None) -> Fault | None:
    """What JSON allows and the door does not, in a text that is JSON."""
    words = strict.problem(bytes(text))
    return Fault(pointer, words, line) if words else None


def items(body: bytes) -> Iterator[Item]:
    """Every value of the body. Raises MalformedUpload where it is no JSON, BadUpload for a NUL character."""
    for found in read(body, _item):
        yield found if isinstance(found, Item) else Item(None, found.pointer, found.line, found)


def _item(text: Text, pointer: str, line: int | None) -> Item:
    return Item(_ANY.decode(text), pointer, line, refused(text, pointer, line))


def first(body: bytes) -> Any:
    """The first value of the body, None where there is none."""
    try:
        return next((item.value for item in items(body) if item.value is not None), None)
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
