"""What JSON allows and the door does not: a key said twice, deep nesting, integers beyond 64 bits.

msgspec lets these pass (the last of two equal keys wins, a large integer becomes a float), so a text that
may hold one is read once more by the standard library's parser, whose hooks see every pair.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson

MAX_DEPTH = 16
_INT_LOW, _INT_HIGH = -(2**63), 2**64 - 1


class _Problem(ValueError):
    """The text is what is wrong."""


class _Nested(int):
    """Stands for an object that has been read: how deep it is."""


def problem(text: bytes) -> str:
    """What the door refuses in this JSON text, in words; '' where there is nothing. The text is JSON."""
    if _is_plain(text):
        return ""
    try:
        depth = _depth(_DECODER.decode(text.decode()))
    except _Problem as error:
        return str(error)
    except RecursionError:
        return _too_deep()
    return _too_deep() if depth > MAX_DEPTH else ""


def _is_plain(text: bytes) -> bool:
    """True where a quick look finds that nothing is wrong: a third of the work of a close one.

    A key that is said twice is lost in reading, and with it its quotes: written again, the text has fewer
    of them, unless a quote was spelt u0022. What writes refuses integers beyond 64 bits.
    """
    if b"u0022" in text:
        return False
    try:
        value = msgspec.json.decode(text)
        written = orjson.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    few = text.count(b"{") + text.count(b"[") <= MAX_DEPTH
    return text.count(b'"') == written.count(b'"') and (few or _is_shallow(value))


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in {dict, list}
        ]
        if not level:
            return True
    return False


def _too_deep() -> str:
    return f"nested deeper than {MAX_DEPTH}"


def _object(pairs: list[tuple[str, Any]]) -> _Nested:
    seen = dict(pairs)
    if len(seen) < len(pairs):
        names = [name for name, _value in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Problem(f"the key {twice[:60]!r} is said twice")
    return _Nested(1 + max(map(_depth, seen.values()), default=0))


def _depth(value: Any) -> int:
    """Of an object that was read, or of a list; 0 for anything else."""
    kind = type(value)
    if kind is _Nested:
        return int(value)
    if kind is list:
        return 1 + max(map(_depth, value), default=0)
    return 0


def _integer(text: str) -> int:
    if len(text) > 20 or not _INT_LOW <= int(text) <= _INT_HIGH:
        raise _Problem(f"the integer {text[:30]} is beyond 64 bits")
    return 0


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=lambda _text: 0.0)
