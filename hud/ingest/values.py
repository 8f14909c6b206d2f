"""The values of a record: numbers, the code that stands for an outcome, the target."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from runner.catalog.codes import status_of
from runner.catalog.metrics import is_number, metric_info
from runner.formats.errors import Fault
from runner.formats.unicode import text
from runner.records import STATUSES, Record

MAX_VALUE = 1e300
MAX_WORDS = 300  # characters of a reason or a warning
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def values_of(record: Record) -> tuple[list[float], str | None, Fault | None]:
    """Numbers and the code of a metric; a fault for a value that is neither number nor known text."""
    assert record.metric is not None
    numbers: list[float] = []
    for index, value in enumerate(record.metric.benchmark_values or []):
        number = _number(value)
        if number is None:
            place = f"/metric/benchmark_values/{index}"
            return [], None, Fault(place, f"{str(value)[:60]!r} is not a number")
        numbers.append(number)
    if record.metric.target_value is not None and _number(record.metric.target_value) is None:
        wrong = str(record.metric.target_value)[:60]
        return [], None, Fault("/metric/target_value", f"{wrong!r} is not a number")
    return numbers, _said_code(record) if numbers or _said_code(record) else _code(record), None


def said_status(record: Record) -> str:
    """The status our own runner wrote; '' where the record says none."""
    assert record.metric is not None
    said = (record.metric.extra_info or {}).get("status")
    return said if isinstance(said, str) and said in STATUSES else ""


def has_outcome(record: Record, code: str | None) -> bool:
    """Whether a record without numbers says how it ended. Of a number `ok` is no end: it has no value."""
    assert record.metric is not None
    said, name = said_status(record), record.metric.name
    if said not in {"", "ok"}:
        return True
    if code is None:
        return False
    return not is_number(name) or (not said and status_of_code(code, name) != "ok")


def said_words(extra: dict[str, Any]) -> str | None:
    """The reason of a status and the warning of a value, in one text; None where there is neither."""
    words = (" ".join(text(extra.get(name)).split()) for name in ("reason", "warning"))
    return "; ".join(filter(None, words))[:MAX_WORDS].strip() or None


def status_of_code(code: str, metric: str) -> str:
    """A word that no system is known to write says nothing of an outcome where outcomes are written."""
    return status_of(code) or ("cannot_tell" if metric_info(metric).kind == "status" else "ok")


def target_of(record: Record) -> float | None:
    """The record's target; 0 is how upstream writes that there is none."""
    assert record.metric is not None
    if record.metric.target_value is None:
        return None
    return _number(record.metric.target_value) or None


def _said_code(record: Record) -> str | None:
    """The code that our own runner, or an export of ours, wrote beside its status."""
    assert record.metric is not None
    code = (record.metric.extra_info or {}).get("code")
    return code[:200] if isinstance(code, str) and code and said_status(record) else None


def _code(record: Record) -> str | None:
    """String metrics stand in ``metric.extra_info.benchmark_values``, as a list or as its JSON text."""
    assert record.metric is not None
    values = (record.metric.extra_info or {}).get("benchmark_values")
    if isinstance(values, str):
        try:
            values = json.loads(values)
        except ValueError:
            values = [values]
    if not isinstance(values, list) or not values or not all(isinstance(item, str) for item in values):
        return None
    return ", ".join(values)[:200].strip() or None


def _number(value: float | str) -> float | None:
    """The number, or None for a text that does not hold exactly one, or one out of range."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return None
        value = float(value)
    return value if math.isfinite(value) and abs(value) <= MAX_VALUE else None
