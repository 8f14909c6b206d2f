"""JSON that the door refuses although it is JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.formats.format import LocatedRecord
from runner.formats.json_text import ERRORS, MAX_DEPTH, problem
from runner.formats.readers.v3 import record_reader

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1, "a": 1}', "the key 'a' is said twice"),
        (b'[{"x": {"b": 1, "c": 2, "b": 3}}]', "the key 'b' is said twice"),
        (b"18446744073709551616", "beyond 64 bits"),
        (b"-9223372036854775809", "beyond 64 bits"),
        (b"1" * 5000, "beyond 64 bits"),
        (b"[" * 17 + b"]" * 17, "deeper than 16"),
        (b'{"a":' * 17 + b"1" + b"}" * 17, "deeper than 16"),
        (b"[" * 50_000 + b"]" * 50_000, "deeper than 16"),
    ],
)
def test_what_is_refused_is_named(text: bytes, words: str) -> None:
    assert words in problem(text)


def test_what_is_just_allowed() -> None:
    assert problem(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) == ""
    assert problem(b"18446744073709551615") == ""
    assert problem(b'{"a": {"a": [1, 2.5, null, true, "a"]}}') == ""


@given(JSON)
def test_anything_shallow_without_repetition_passes(value: object) -> None:
    def depth(item: object) -> int:
        if isinstance(item, dict):
            return 1 + max(map(depth, item.values()), default=0)
        return 1 + max(map(depth, item), default=0) if isinstance(item, list) else 0

    assert (problem(json.dumps(value).encode()) == "") == (depth(value) <= MAX_DEPTH)


_HEAD = b'{"benchmark": {"name": "b", "extra_info": {"size": 1}}'
_HOST = b', "runners": [{"name": "h1"}], "dependencies": {"torch": {"version": "2"}}}'
_MODEL = b', "model": {"name": "m"}, "metric": {"name": "latency", "benchmark_values": [1.5]}'


@pytest.mark.parametrize(
    "text",
    [
        _HEAD + _MODEL + _HOST,
        _HEAD + _MODEL + b"}",
        _HEAD + b"}",
        _HEAD,
        _HEAD + _HOST,
        _HEAD + b', "model": {"name": "m"' + _HOST,
        _HEAD + _MODEL + b', "runners": null' + _HOST,
        _HEAD + _MODEL + b', "dependencies": {"torch": {"version": "3"}}' + _HOST,
        _HEAD + _MODEL + b', "benchmark": {"name": "c"}' + _HOST,
        _HEAD + _MODEL + b', "benchmark": 0' + _HOST,
        _HEAD + _MODEL + b', "timestamp": 1, "timestamp": 2' + _HOST,
        _HEAD + _MODEL.replace(b'"m"', b'"m') + _HOST,
        _HEAD + _MODEL.replace(b"1.5", b"99999999999999999999") + _HOST,
        _HEAD + _MODEL.replace(b"1.5", b'"fast", null') + _HOST,
        _HEAD + _MODEL.replace(b"1.5", b"NaN") + _HOST,
        _HEAD + _MODEL + _HOST + b" ",
        _HEAD + _MODEL + _HOST + b"]",
        b'{"benchmark": {"name": "b", "extra_info": {"size": 10}}' + _MODEL + _HOST,
    ],
)
@pytest.mark.parametrize("end", [_HOST, b"}"])
def test_a_record_reads_the_same_behind_records_that_begin_and_end_like_it(text: bytes, end: bytes) -> None:
    def read(text: bytes) -> Any:
        try:
            return reader(text, "", None)
        except ERRORS as error:
            return repr(error)

    reader = record_reader.__wrapped__()
    alone = read(text)
    reader = record_reader.__wrapped__()
    for _ in range(3):
        assert isinstance(read(_HEAD + _MODEL + end), LocatedRecord)
    framed = read(text)
    assert type(framed) is type(alone)
    if isinstance(framed, LocatedRecord):
        assert framed.record.to_json() == alone.record.to_json()
    else:
        assert framed == alone


def test_a_record_that_ends_behind_its_benchmark_is_cut_off() -> None:
    reader = record_reader.__wrapped__()
    cut = b'{"model": {"name": "m"}, "metric": {"name": "t", "target_value": 1}, "benchmark": {"name": "b"}'
    for _ in range(3):
        assert isinstance(reader(cut + b"}", "", None), LocatedRecord)
    with pytest.raises(ERRORS):
        reader(cut, "", None)
