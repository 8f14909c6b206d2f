"""JSON that the door refuses although it is JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.formats.json_text import MAX_DEPTH, problem

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
