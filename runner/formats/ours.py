"""What `python -m runner run --output FILE` writes: one line a task, with the records it measured, and those
of what it has not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from runner.catalog import BadRequest, missing
from runner.formats import Placed, v3
from runner.formats.errors import Fault
from runner.formats.json_text import begins_with, first, items


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the keys say it
    return begins_with(body, "fingerprint", "task", "outcome") and _is_task(first(body))


def _is_task(value: Any) -> bool:
    return isinstance(value, dict) and "fingerprint" in value and isinstance(value.get("records"), list)


def read(body: bytes, filename: str) -> Iterator[Placed]:  # noqa: ARG001
    for item in items(body):
        if item.fault or not _is_task(item.value):
            detail = "a line of our runner has a fingerprint and records"
            fault = item.fault or Fault(item.pointer, detail, item.line)
            yield Placed(None, fault.pointer, fault.line, fault=fault)
            continue
        try:
            records = missing.whole(item.value)
        except BadRequest as error:
            yield Placed(None, item.pointer, item.line, skip=str(error))
            continue
        for index, record in enumerate(records):
            yield v3.placed(msgspec.json.encode(record), f"{item.pointer}/records/{index}", item.line)
