"""Numbers, texts and names as the formats write them."""

import hashlib
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from runner.formats.errors import WrongRecord

# Zero-width and bidirectional characters: a name that holds one looks like another name.
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def number(text: str) -> float | None:
    """Return the finite number that the text holds and nothing else, or None."""
    return finite(float(text)) if _NUMBER.fullmatch(text) else None


def finite(value: Any) -> float | None:
    """Return a JSON number as a double, or None for anything that has none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def number_of(value: Any) -> float | None:
    """Return the number of a JSON value or of a text, or None."""
    return number(value) if isinstance(value, str) else finite(value)


def number_in(cell: Any, pointer: str = "") -> float:
    """Return the number of a cell, whose place is the pointer. Raise WrongRecord if it has none."""
    value = number_of(cell)
    if value is None:
        raise WrongRecord(pointer, f"{str(cell)[:60]!r} is not a number")
    return value


def numbers_in(cell: Any, _metric: str = "") -> list[float]:
    """Return the number of a cell, or all of a list of samples."""
    return [number_in(item) for item in (cell if isinstance(cell, list) else [cell])]


def text(value: Any) -> str:
    """Return a text as it is, '' for anything else."""
    return value if isinstance(value, str) else ""


def nfc(name: str) -> str:
    """Return the name in Unicode's composed form, so that é is the same name however it was typed."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def invisible_in(text: str) -> str:
    """Return the first invisible character of a text as ``U+202E``, or ''."""
    match = None if text.isascii() else INVISIBLE.search(text)
    return f"U+{ord(match[0]):04X}" if match else ""


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether lists and objects are nested deeper than that in a JSON value."""
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return limit == 0 or any(is_deeper(child, limit - 1) for child in children)


def base_name(path: str) -> str:
    """Return the name of a file, also of a path that Windows wrote."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def groups_in_name(pattern: str) -> Callable[[str], Mapping[str, str]]:
    """Return a function that returns the groups of a pattern in a file's whole name, {} for another name."""

    def groups(filename: str) -> Mapping[str, str]:
        match = re.fullmatch(pattern, base_name(filename))
        return match.groupdict("") if match else {}

    return groups


def branch_name(name: str) -> str:
    """Return the name of a branch from its full reference or its short form."""
    return nfc(name.removeprefix("refs/heads/"))[:200]


def shortened(name: str, limit: int = 200) -> str:
    """Cut a name to the limit, with a digest that keeps two long ones apart."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name[: limit - 13]}#{digest}"
