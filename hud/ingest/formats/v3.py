"""PyTorch's v3 benchmark records, the shape of its benchmark database and of our own runner.

Containers: a JSON list, a single object, JSON lines, and lines that are lists. Source: test-infra,
`.github/scripts/upload_benchmark_results.py`, and the wiki page on the OSS benchmark database.
torchdynamo's and gpt-fast's side files and cachebench's list have this shape too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from hud.ingest.errors import Fault
from hud.ingest.formats import Placed, reasons
from hud.ingest.formats.json_text import ERRORS, is_json, malformed, not_json, refuse_nul
from hud.ingest.formats.table import number
from runner.records import Metric, Record


class _Bare(msgspec.Struct):
    """What there is of a record that is none."""

    metric: Any = None


_ONE = msgspec.json.Decoder(Record)
_BARE = msgspec.json.Decoder(_Bare)
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
_PLACE = re.compile(r" - at `\$(?P<path>.*)`$")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]")
_Raw = bytes | msgspec.Raw


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the name is other formats' evidence
    return is_json(body)


def read(body: bytes, filename: str) -> Iterator[Placed]:  # noqa: ARG001
    """Every record with its place; raises BadUpload for a body that is not JSON."""
    refuse_nul(body)
    try:
        pieces = _pieces(body)
    except ERRORS as error:
        lines = body.splitlines()
        if sum(1 for line in lines if line.strip()) < 2:
            raise malformed(error, body) from error
        yield from _read_lines(lines, error, body)
        return
    try:
        for piece, pointer in pieces:
            yield placed(piece, pointer, None)
    except ERRORS as error:
        raise _malformed_inside(error, body) from error


def _pieces(body: bytes) -> list[tuple[_Raw, str]]:
    """The values of a list, or the one value. Raises one of ERRORS for what is no JSON."""
    try:
        return [(item, f"/{index}") for index, item in enumerate(_RAW_LIST.decode(body))]
    except msgspec.ValidationError:
        _ANY.decode(body)
        return [(body, "")]


def _malformed_inside(error: Exception, body: bytes) -> Exception:
    """The place of what is wrong in a piece, found by reading the whole."""
    try:
        _ANY.decode(body)
    except ERRORS as whole:
        return malformed(whole, body)
    return malformed(error, body)


def _read_lines(lines: list[bytes], whole_error: Exception, body: bytes) -> Iterator[Placed]:
    parsed = False
    wrong: list[Placed] = []
    for number_of_line, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = [placed(piece, pointer, number_of_line) for piece, pointer in _pieces(line)]
        except ERRORS as error:
            found = [_wrong(not_json(error, number_of_line))]
            if not parsed:
                wrong += found
                continue
        if not parsed:
            parsed = True
            yield from wrong
        yield from found
    if not parsed:
        raise malformed(whole_error, body) from whole_error


def placed(piece: _Raw, pointer: str, line: int | None) -> Placed:
    """One JSON text as a record, or with what is wrong with it. Raises one of ERRORS for what is no JSON."""
    try:
        record = _ONE.decode(piece)
    except msgspec.ValidationError as error:
        if _without_metric(piece):
            return Placed(None, pointer, line, skip=reasons.NO_METRIC)
        return _wrong(_fault(error, pointer, line))
    if record.metric is None:
        return Placed(record, pointer, line, skip=reasons.NO_METRIC)
    if record.benchmark.name == "TorchInductor" and record.metric.name == "tag":
        return Placed(record, pointer, line, skip=reasons.TAG)
    _read_numbers_in_text(record.metric)
    return Placed(record, pointer, line)


def _without_metric(piece: _Raw) -> bool:
    try:
        return _BARE.decode(piece).metric is None
    except msgspec.ValidationError:
        return False


def _read_numbers_in_text(metric: Metric) -> None:
    """torchdynamo formats its compile phases itself, so that its writer takes them for words."""
    words = (metric.extra_info or {}).get("benchmark_values")
    if metric.benchmark_values or not isinstance(words, list) or not words:
        return
    numbers = [number(word) for word in words if isinstance(word, str)]
    values = [value for value in numbers if value is not None]
    if len(values) == len(words):
        metric.benchmark_values = [*values]


def _wrong(fault: Fault) -> Placed:
    return Placed(None, fault.pointer, fault.line, fault=fault)


def _fault(error: msgspec.ValidationError, pointer: str, line: int | None) -> Fault:
    text = str(error)
    found = _PLACE.search(text)
    if not found:
        return Fault(pointer, text, line)
    path = "".join(f"/{name or index}" for name, index in _STEP.findall(found["path"]))
    return Fault(pointer + path, text[: found.start()], line)
