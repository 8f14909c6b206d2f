"""PyTorch's v3 benchmark records, the shape of its benchmark database and of our own runner.

Containers: a JSON list, a single object, JSON lines, and lines that are lists. Source: test-infra,
`.github/scripts/upload_benchmark_results.py`, and the wiki page on the OSS benchmark database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from hud.ingest.errors import BadUpload, Fault, MalformedUpload
from hud.ingest.formats import Placed
from runner.records import Record

_WHOLE = msgspec.json.Decoder(list[Record] | Record)
_LINE = msgspec.json.Decoder(Record | list[Record])
_ONE = msgspec.json.Decoder(Record)
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
_PLACE = re.compile(r" - at `\$(?P<path>.*)`$")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]")
_BYTE = re.compile(r"\(byte (\d+)\)")
_NUL = re.compile(rb"\\u0000|\x00")


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the name is other formats' evidence
    return body.lstrip()[:1] in {b"[", b"{"}


def read(body: bytes, filename: str) -> Iterator[Placed]:  # noqa: ARG001
    """Every record with its place; raises BadUpload for a body that is not JSON."""
    _refuse_nul(body)
    try:
        whole = _WHOLE.decode(body)
    except msgspec.ValidationError:
        yield from _read_items(body)
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        lines = body.splitlines()
        if sum(1 for line in lines if line.strip()) < 2:
            raise _malformed(error, body) from error
        yield from _read_lines(lines, error, body)
        return
    if isinstance(whole, Record):
        yield _placed(whole, "", None)
    else:
        for index, record in enumerate(whole):
            yield _placed(record, f"/{index}", None)


def _placed(record: Record, pointer: str, line: int | None) -> Placed:
    return Placed(record, pointer, line, "" if record.metric else "the record has no metric")


def _wrong(fault: Fault) -> Placed:
    return Placed(None, fault.pointer, fault.line, fault=fault)


def _malformed(error: Exception, body: bytes) -> MalformedUpload:
    found = _BYTE.search(str(error))
    line = body[: int(found[1])].count(b"\n") + 1 if found else None
    return MalformedUpload("the body is not JSON", [Fault("", str(error), line, malformed=True)])


def _read_lines(lines: list[bytes], whole_error: Exception, body: bytes) -> Iterator[Placed]:
    placed: list[Placed] = []
    parsed = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _LINE.decode(line)
        except msgspec.ValidationError as error:
            placed.append(_wrong(_fault(error, "", number)))
            parsed += 1
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            placed.append(_wrong(Fault("", f"the line is not JSON: {error}", number, malformed=True)))
        else:
            parsed += 1
            if isinstance(entry, Record):
                placed.append(_placed(entry, "", number))
            else:
                placed += [_placed(item, f"/{index}", number) for index, item in enumerate(entry)]
    if not parsed:
        raise _malformed(whole_error, body) from whole_error
    yield from placed


def _read_items(body: bytes) -> Iterator[Placed]:
    """The body is JSON but not all records: each that is not comes with its fault."""
    try:
        items = _RAW_LIST.decode(body)
    except msgspec.ValidationError:
        items = None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error, body) from error
    for index, item in enumerate([body] if items is None else items):
        pointer = "" if items is None else f"/{index}"
        try:
            yield _placed(_ONE.decode(item), pointer, None)
        except msgspec.ValidationError as error:
            yield _wrong(_fault(error, pointer, None))


def _fault(error: msgspec.ValidationError, pointer: str, line: int | None) -> Fault:
    text = str(error)
    found = _PLACE.search(text)
    if not found:
        return Fault(pointer, text, line)
    path = "".join(f"/{name or index}" for name, index in _STEP.findall(found["path"]))
    return Fault(pointer + path, text[: found.start()], line)


def _refuse_nul(body: bytes) -> None:
    """PostgreSQL stores no NUL character, so a text that holds one cannot be kept as it came."""
    if not _NUL.search(body):
        return
    for number, line in enumerate(body.splitlines(), start=1):
        if b"\0" in line or (b"\\u0000" in line and _holds_nul(line)):
            raise BadUpload("a text holds a NUL character", [Fault("", "NUL character", number)])


def _holds_nul(line: bytes) -> bool:
    try:
        value: Any = _ANY.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
