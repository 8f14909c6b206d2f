"""The file of `python -m runner run --output FILE`: a line for each task with its records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.formats import v3
from runner.formats.errors import Fault
from runner.formats.format import Format, Item


def _is_task(value: Any) -> bool:
    return isinstance(value, dict) and "fingerprint" in value and isinstance(value.get("records"), list)


def read(body: bytes, filename: str) -> Iterator[Item]:
    import msgspec

    from runner.formats import json_text

    record_of = v3.record_reader()
    for item in json_text.values(body, _is_task, "a line of our runner has a fingerprint and records"):
        if isinstance(item, Fault):
            yield item
        else:
            for index, record in enumerate(item.value["records"]):
                yield record_of(msgspec.json.encode(record), f"{item.pointer}/records/{index}", item.line)


FORMAT = Format(
    "ours",
    matches=lambda preview: preview.names("fingerprint", "task", "outcome") and _is_task(preview.first_value),
    read=read,
)
