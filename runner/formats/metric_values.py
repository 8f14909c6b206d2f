"""What a v3 record's metric says: its values, target, outcome, unit and direction."""

import json
from functools import lru_cache
from typing import Any

from runner.formats.errors import WrongRecord
from runner.formats.scalars import INVISIBLE, invisible_in, nfc, number_of, text
from runner.formats.statuses import status_of, status_of_word
from runner.schema.metrics import canonical_unit, is_number, metric_info
from runner.schema.records import Metric
from runner.schema.statistics import value_of
from runner.schema.suite import value_rule

MAX_VALUE = 1e300
_MAX_SAMPLES = 100_000
NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # as `json_text` reads what Python's json.dump writes
_MAX_UNIT = 40  # characters
_MAX_MESSAGE = 300  # of a reason or a warning


def numbers_of(metric: Metric) -> list[float]:
    """Return the values. Raise WrongRecord for what is no number that can be stored."""
    values = metric.benchmark_values or []
    if set(map(type, values)) == {float} and max(map(abs, values)) <= MAX_VALUE:  # type: ignore[arg-type]
        return list(values)  # type: ignore[arg-type]  # nearly always; JSON has no NaN
    numbers = []
    for index, value in enumerate(values):
        found = _number(value)
        if found is None:
            raise _no_number(f"/metric/benchmark_values/{index}", value)
        numbers.append(found)
    return numbers


def target_of(metric: Metric) -> float | None:
    """Return the record's target. PyTorch's scripts write 0 for none."""
    if metric.target_value is None:
        return None
    found = _number(metric.target_value)
    if found is None:
        raise _no_number("/metric/target_value", metric.target_value)
    return found or None


def check_values(suite: str, metric: str, samples: list[float]) -> None:
    """Raise WrongRecord for values that cannot be stored or are negative for an unsigned metric."""
    if len(samples) > _MAX_SAMPLES:
        raise WrongRecord("/metric/benchmark_values", f"more than {_MAX_SAMPLES} values")
    if not samples:
        return
    total = value_of(samples, "sum") if value_rule(suite, metric) == "sum" else 0.0
    lowest = min(samples)
    if max(samples) > MAX_VALUE or -lowest > MAX_VALUE or abs(total) > MAX_VALUE:
        raise WrongRecord("/metric/benchmark_values", f"a value beyond {MAX_VALUE:g} in the metric's unit")
    if lowest < 0 and not metric_info(metric).signed:
        index = next(index for index, sample in enumerate(samples) if sample < 0)
        detail = f"{samples[index]:g} is below zero, which {metric} cannot be"
        raise WrongRecord(f"/metric/benchmark_values/{index}", detail)


def _no_number(pointer: str, value: float | str) -> WrongRecord:
    words = f"{str(value)[:60]!r}"
    if value in NOT_FINITE:
        detail = f"{words} is no measured value: NaN and Infinity cannot be stored"
        return WrongRecord(pointer, detail, malformed=True)
    detail = "is not a number" if number_of(value) is None else f"is beyond {MAX_VALUE:g}"
    return WrongRecord(pointer, f"{words} {detail}")


def _number(value: float | str) -> float | None:
    found = number_of(value)
    return found if found is not None and abs(found) <= MAX_VALUE else None


def outcome_of(extra: dict[str, Any], *, has_numbers: bool) -> tuple[str, str | None]:
    """Return the status that a record says, '' for none, and its code. Another tool's word stays as code."""
    word = text(extra.get("status"))
    status = status_of_word(word) if word else ""
    code = _code(extra, status, has_numbers=has_numbers)
    return status, code or (word if status not in {"", "ok", word} else None)


def _code(extra: dict[str, Any], status: str, *, has_numbers: bool) -> str | None:
    """Return the code of an outcome: the one that our runner or export wrote beside the status, or, without
    numbers, the texts in place of values, as a list or JSON."""
    code = extra.get("code")
    if status and isinstance(code, str) and code:
        return INVISIBLE.sub("", code)[:200]
    values = extra.get("benchmark_values")
    if has_numbers or not values:
        return None
    if isinstance(values, str):
        try:
            values = json.loads(values)
        except ValueError:
            values = [values]
    if not isinstance(values, list) or not values or not all(isinstance(item, str) for item in values):
        return None
    return INVISIBLE.sub("", ", ".join(values))[:200].strip() or None


def is_outcome(status: str, code: str | None, metric: str) -> bool:
    """Return whether a record without numbers has an outcome. For a numeric metric `ok` is none: it has no
    value."""
    if status not in {"", "ok"}:
        return True
    if code is None:
        return False
    return not is_number(metric) or (not status and status_of_code(code, metric) != "ok")


def status_of_code(code: str | None, metric: str) -> str:
    """Return the status of a code. An unknown code is an outcome only for a status metric."""
    if not code:
        return "ok"
    return status_of(code) or ("cannot_tell" if metric_info(metric).kind == "status" else "ok")


_DIRECTIONS = {
    "up": "up", "higher": "up", "higher_is_better": "up", "maximize": "up", "max": "up",
    "down": "down", "lower": "down", "lower_is_better": "down", "minimize": "down", "min": "down",
}  # fmt: skip


def meaning_of(metric: Metric) -> tuple[str, str]:
    """Return unit and direction of a metric as its record says them, '' for what it does not. Raise
    WrongRecord for a unit that cannot be stored."""
    extra = metric.extra_info or {}
    return _meaning(text(extra.get("unit") or metric.unit), text(extra.get("direction")))


@lru_cache(maxsize=256)
def _meaning(unit: str, direction: str) -> tuple[str, str]:
    if len(unit) > _MAX_UNIT:
        raise WrongRecord("/metric/extra_info/unit", f"the unit is longer than {_MAX_UNIT} characters")
    if character := invisible_in(unit):
        raise WrongRecord("/metric/extra_info/unit", f"the unit holds the invisible character {character}")
    word = direction.strip().lower().replace(" ", "_").replace("-", "_")
    return canonical_unit(nfc(unit.strip())), _DIRECTIONS.get(word, "")


def message_of(extra: dict[str, Any]) -> str | None:
    """Return the reason of a status and the warning of a value as one text."""
    words = (" ".join(text(extra.get(name)).split()) for name in ("reason", "warning"))
    return INVISIBLE.sub("", "; ".join(filter(None, words)))[:_MAX_MESSAGE].strip() or None
