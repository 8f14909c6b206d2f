"""Large files cut into bodies: every record once, in order, no body over the limit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.formats import bodies as module
from runner.formats.bodies import CannotSplit, split


def records_in(bodies: list[bytes]) -> list[Any]:
    found: list[Any] = []
    for body in bodies:
        text = body.decode()
        if text.startswith("["):
            try:
                found += json.loads(text)
                continue
            except ValueError:
                pass
        for line in text.splitlines():
            value = json.loads(line)
            found += value if isinstance(value, list) else [value]
    return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=4), min_size=1
    ),
    st.sampled_from(["list", "indented", "lines", "gzip"]),
    st.integers(600, 2000),  # the largest record has 560 bytes
    st.integers(1, 50),
)
def test_every_record_comes_once_and_in_order(
    tmp_path: Path, records: list[Any], container: str, limit: int, read: int
) -> None:
    text = {
        "list": json.dumps(records),
        "indented": json.dumps(records, indent=1, ensure_ascii=False),
        "lines": "\n".join(json.dumps(record) for record in records),
        "gzip": "\n".join(json.dumps(record) for record in records),
    }[container]
    path = tmp_path / ("records.jsonl.gz" if container == "gzip" else "records.json")
    data = text.encode()
    path.write_bytes(gzip.compress(data) if container == "gzip" else data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_READ", max(read, 2))
        bodies = list(split(path, limit))
    assert records_in(bodies) == records
    assert all(len(body) <= limit for body in bodies)


@pytest.mark.parametrize("text", ["name,metric\n1,2\n", '[{"a": 1}, {"a"', '[{"a": 1} nonsense'])
def test_what_cannot_be_cut_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(CannotSplit):
        list(split(path, 1000))


def test_a_record_larger_than_a_body_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps({"a": "x" * 100}) + "\n{}\n")
    with pytest.raises(CannotSplit, match="one record has"):
        list(split(path, 50))
