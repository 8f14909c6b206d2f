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

from runner.formats import Placed, json_text, reasons
from runner.formats.errors import Fault
from runner.formats.table import number
from runner.records import Metric, Record


class _Bare(msgspec.Struct):
    """What there is of a record that is none."""

    metric: Any = None


_ONE = msgspec.json.Decoder(Record)
_BARE = msgspec.json.Decoder(_Bare)
_PLACE = re.compile(r" - at `\$(?P<path>.*)`$")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]")


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the name is other formats' evidence
    return json_text.is_json(body)


def read(body: bytes, filename: str) -> Iterator[Placed]:  # noqa: ARG001
    """Every record with its place; raises BadUpload for a body that is not JSON."""
    for found in json_text.read(body, placed):
        yield found if isinstance(found, Placed) else _wrong(found)


def placed(text: json_text.Text, pointer: str, line: int | None) -> Placed:
    """One JSON text as a record, or with what is wrong with it. Raises one of ERRORS for what is no JSON."""
    try:
        record = _ONE.decode(text)
    except msgspec.ValidationError as error:
        if _without_metric(text):
            return Placed(None, pointer, line, skip=reasons.NO_METRIC)
        return _wrong(_fault(error, pointer, line))
    refused = json_text.refused(text, pointer, line)
    if refused:
        return _wrong(refused)
    if record.metric is None:
        return Placed(record, pointer, line, skip=reasons.NO_METRIC)
    if record.benchmark.name == "TorchInductor" and record.metric.name == "tag":
        return Placed(record, pointer, line, skip=reasons.TAG)
    _read_numbers_in_text(record.metric)
    return Placed(record, pointer, line)


def _without_metric(text: json_text.Text) -> bool:
    try:
        return _BARE.decode(text).metric is None
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
