"""Values are found one by one, whatever the body is made of."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from runner.formats import json_text
from runner.formats.errors import Fault, MalformedUpload
from runner.formats.json_text import Value


def found(body: bytes) -> list[Any]:
    return [
        (item.value, item.pointer, item.line) if isinstance(item, Value) else item.line
        for item in json_text.values(body)
    ]


@pytest.mark.parametrize(
    "items",
    [[], [1], [{"a": '],[\\"}{'}, [], "x,y"], [[1, [2]], {"b": {"c": [None]}}, -1.5e-3, True, "é"]],
)
def test_a_list_of_anything(items: list[Any]) -> None:
    expected = [(item, f"/{index}", None) for index, item in enumerate(items)]
    assert found(json.dumps(items).encode()) == expected
    assert found(json.dumps(items, indent=3, ensure_ascii=False).encode()) == expected


def test_lines_have_the_numbers_that_an_editor_shows() -> None:
    body = b'\n{"a": 1}\r\n\r\n[2, 3]\rnot JSON\n[]\n"x"'
    assert found(body) == [({"a": 1}, "", 2), (2, "/0", 4), (3, "/1", 4), 5, ("x", "", 7)]


def test_a_fault_in_the_midst_of_a_list_of_lines_is_told_with_its_line() -> None:
    items = list(json_text.values(b'[1, "\xff"]\n2\n'))
    assert [item.line for item in items if isinstance(item, Fault)] == [1]


@pytest.mark.parametrize("body", [b"[{},", b"[{} {}]", b"[1,]", b"nope", b"\n" * 5000 + b"x\n" * 5000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedUpload):
        list(json_text.values(body))


def test_the_first_values_of_a_large_body_are_read_without_the_others() -> None:
    body = b"[" + b"{}," * 5_000_000 + b"{}]"
    assert [item.pointer for item in islice(json_text.values(body), 3)] == ["/0", "/1", "/2"]
