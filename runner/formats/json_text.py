"""Read JSON in its containers: one value, a list, or a value or list on each line. Only the formats' `read`
imports this module, since hosts have no msgspec.

Refuse a key that stands twice, deep nesting, integers beyond 64 bits and NUL characters. msgspec lets these
pass (the last of two equal keys wins, a large integer becomes a float), so each text is read again by the
standard library's parser, whose hooks see every pair.

Values are found one by one, so that memory does not depend on how many there are: 32 MiB may hold ten
million empty objects.
"""

import io
import json
import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from runner.formats.bodies import CannotSplit, elements
from runner.formats.errors import BadUpload, Fault, MalformedUpload
from runner.formats.scalars import is_deeper
from runner.schema.records import Record

_T = TypeVar("_T")
ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CannotSplit)
MAX_DEPTH = 16
RECORD = msgspec.json.Decoder(Record)
_ANY = msgspec.json.Decoder()
_SKIP = msgspec.json.Decoder(msgspec.Raw)  # checks a text without building its value
_BYTE = re.compile(r"\(byte (\d+)\)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_LIST_START = re.compile(rb"\s*\[")
_MAX_UNREADABLE = 1000  # lines before the first one that is JSON
_NUL = re.compile(rb"(?<!\\)(\\\\)*\\u0000|\x00")  # behind an escaped backslash it is no NUL
# A text that never ends is matched too, so that nothing is searched twice.
_NAN_OR_TEXT = re.compile(rb'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+(?:"|\\?\Z)|(-?\b(?:NaN|Infinity)\b)')
_INT_LOW, _INT_HIGH = -(2**63), 2**64 - 1


class Value(NamedTuple):
    """A JSON value and where it stood."""

    value: Any
    pointer: str
    line: int | None


def values(
    body: bytes, fits: Callable[[Any], bool] = lambda _value: True, what: str = ""
) -> Iterator[Value | Fault]:
    """Yield every value of the body, a Fault for what is refused, and one that says `what` fits for a value
    that does not. Raise MalformedUpload, BadUpload."""

    def value(text: bytes, pointer: str, line: int | None) -> Value | Fault:
        value = _ANY.decode(text)
        words = problem(text) or ("" if fits(value) else what)
        return Fault(pointer, words, line) if words else Value(value, pointer, line)

    return read(body, value)


def first_value(body: bytes) -> Any:
    """Return the first value of the body that is neither null nor wrong, None where there is none."""
    try:
        values = read(body, lambda text, _pointer, _line: _ANY.decode(text))
        return next((value for value in values if value is not None and not isinstance(value, Fault)), None)
    except BadUpload:
        return None


def read(body: bytes, take: Callable[[bytes, str, int | None], _T]) -> Iterator[_T | Fault]:
    """Call `take` with each value's text, pointer and line; yield its results, and a Fault for a line that is
    not JSON. `take` may raise ERRORS. Raise MalformedUpload if the body is not JSON, BadUpload for a NUL
    character.
    """
    refuse_nul(body)
    try:
        pieces = _first_pieces(body)
    except ERRORS as error:
        if len(list(islice(_lines(body), 2))) < 2:
            raise _malformed(error, body) from error
        yield from _read_lines(take, error, body)
        return
    try:
        for text, pointer in pieces:
            yield take(text, pointer, None)
    except ERRORS as error:
        try:
            _ANY.decode(body)  # to find the place of what is wrong in a piece
        except ERRORS as whole:
            raise _malformed(whole, body) from error
        raise _malformed(error, body) from error


def _first_pieces(body: bytes) -> Iterator[tuple[bytes, str]]:
    try:
        return _pieces(body)
    except ERRORS as error:
        if _TRAILING.search(str(error)):  # lines; each of them is looked at when it is read
            raise
        if b"NaN" not in body and b"Infinity" not in body:
            raise
        # Python's json.dump writes them and JSON has none: as texts in a number's place they refuse their own
        # record, and not the whole body
        return _pieces(_NAN_OR_TEXT.sub(lambda found: b'"%s"' % found[1] if found[1] else found[0], body))


def _pieces(body: bytes) -> Iterator[tuple[bytes, str]]:
    """Return the values of a list, or the one value, with their pointers. Raise one of ERRORS for no JSON."""
    _SKIP.decode(body)
    if not _LIST_START.match(body):
        return iter([(body, "")])
    texts = elements(io.TextIOWrapper(io.BytesIO(body), "utf-8"))
    return ((text, f"/{index}") for index, text in enumerate(texts))


def _lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for number, line in enumerate(io.BytesIO(body), start=1):
        if not line.isspace():
            yield number, line.rstrip(b"\n")


def _read_lines(
    take: Callable[[bytes, str, int | None], _T], whole_error: Exception, body: bytes
) -> Iterator[_T | Fault]:
    wrong: list[Fault] | None = []  # lines before the first that is JSON; None behind it
    for number, line in _lines(body):
        try:
            items = (take(text, pointer, number) for text, pointer in _first_pieces(line))
            first = [*islice(items, 1)]  # [] of an empty list
            yield from wrong or ()
            wrong = None
            yield from chain(first, items)
        except ERRORS as error:  # noqa: PERF203 - each line is one to be told
            fault = Fault("", f"the line is not JSON: {error}", number, malformed=True)
            if wrong is None:
                yield fault
                continue
            wrong.append(fault)
            if len(wrong) > _MAX_UNREADABLE:
                break
    if wrong is not None:
        raise _malformed(whole_error, body) from whole_error


def _malformed(error: Exception, body: bytes) -> MalformedUpload:
    match = _BYTE.search(str(error))
    line = body[: int(match[1])].count(b"\n") + 1 if match else None
    return MalformedUpload("the body is not JSON", [Fault("", str(error), line, malformed=True)])


def refuse_nul(body: bytes) -> None:
    """Raise BadUpload for a text that holds a NUL character, which PostgreSQL does not store."""
    if b"\0" not in body and (b"\\" not in body or b"\\u0000" not in body):
        return
    if match := _NUL.search(body):
        line = body.count(b"\n", 0, match.start()) + 1
        raise BadUpload("a text holds a NUL character", [Fault("", "NUL character", line)])


class _Problem(ValueError):
    """Something that this module refuses; its text says what."""


def problem(text: bytes) -> str:
    """Return what is refused in this text, which is JSON, or ''."""
    try:
        is_deep = is_deeper(_DECODER.decode(text.decode()), MAX_DEPTH)
    except _Problem as error:
        return str(error)
    except RecursionError:
        is_deep = True
    return f"nested deeper than {MAX_DEPTH}" if is_deep else ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) < len(pairs):
        names = [name for name, _value in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Problem(f"the key {twice[:60]!r} is said twice")
    return seen


def _integer(text: str) -> int:
    if len(text) > 20 or not _INT_LOW <= int(text) <= _INT_HIGH:
        raise _Problem(f"the integer {text[:30]} is beyond 64 bits")
    return 0


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=lambda _text: 0.0)
