"""The metric of a v3 record: its values, target, outcome, unit and direction. The outside systems' own
words for an outcome are each mapped to one of `runner.schema.records.STATUSES` by `words.csv`.
"""

import json
import re
from typing import Any

from runner.formats.errors import WrongRecord
from runner.formats.scalars import INVISIBLE, invisible_in, nfc, number_of, text
from runner.schema.metrics import canonical_unit, is_known, metric_info
from runner.schema.records import STATUSES, Metric
from runner.schema.statistics import value_of
from runner.schema.suite import value_rule
from runner.schema.tables import rows

MAX_VALUE = 1e300
_MAX_SAMPLES = 100_000
NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # as `json_text` reads what Python's json.dump writes
_MAX_UNIT = 40  # characters
_MAX_MESSAGE = 300  # of a reason or a warning
_MAX_CODE = 200


def _meanings_of(kind: str) -> dict[str, str]:
    listed = [row for row in rows(__file__, "words.csv") if row["kind"] == kind]
    return {word: row["meaning"] for row in listed for word in row["words"].split()}


ACCURACY_CODES = _meanings_of("accuracy")
_AT_BATCH = _meanings_of("at_batch")  # with a number behind
VERIFIER_CODES = _meanings_of("verifier")
STATUS_WORDS = {status: status for status in STATUSES} | _meanings_of("status")
_DIRECTIONS = {"": ""} | _meanings_of("direction")
_ERRORS = (
    ("oom", re.compile(r"out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|\bCUDA OOM\b", re.IGNORECASE)),
    ("timed_out", re.compile(r"timed out|Exceeded timeout|TimeoutExpired|TimeoutError", re.IGNORECASE)),
    ("unsupported", re.compile(r"NotImplementedError")),
)
_CODES = ACCURACY_CODES | VERIFIER_CODES | _meanings_of("other")
_NUMBERED = re.compile(r"(\w+)_\d+")


def numbers_of(metric: Metric) -> list[float]:
    """Return the values. Raise WrongRecord for what is no number that can be stored."""
    values = metric.benchmark_values or []
    if set(map(type, values)) == {float} and max(map(abs, values)) <= MAX_VALUE:  # type: ignore[arg-type]
        return list(values)  # type: ignore[arg-type]  # nearly always; JSON has no NaN
    return [_number(value, f"/metric/benchmark_values/{index}") for index, value in enumerate(values)]


def target_of(metric: Metric) -> float | None:
    """Return the record's target. PyTorch's scripts write 0 for none."""
    if metric.target_value is None:
        return None
    return _number(metric.target_value, "/metric/target_value") or None


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


def _number(value: float | str, pointer: str) -> float:
    number = number_of(value)
    if number is not None and abs(number) <= MAX_VALUE:
        return number
    detail = "is not a number" if number is None else f"is beyond {MAX_VALUE:g}"
    if value in NOT_FINITE:
        detail = "is no measured value: NaN and Infinity cannot be stored"
    raise WrongRecord(pointer, f"{str(value)[:60]!r} {detail}", malformed=value in NOT_FINITE)


def outcome_of(extra: dict[str, Any], *, has_numbers: bool) -> tuple[str, str | None]:
    """Return the status that a record says, '' for none, and its code. Another tool's word stays as code."""
    word = text(extra.get("status"))
    spelling = re.sub(r"[\s-]+", "_", word.strip().lower()) if 0 < len(word) < _MAX_CODE else ""
    # a harness's code stands there too; '' for a word that no tool is known to write
    status = STATUS_WORDS.get(spelling) or status_of(word) or ""
    code = _code(extra, status, has_numbers=has_numbers)
    return status, code or (word if status not in {"", "ok", word} else None)


def _code(extra: dict[str, Any], status: str, *, has_numbers: bool) -> str | None:
    """Return the code of an outcome: the one that our runner or export wrote beside the status, or, without
    numbers, the texts in place of values, as a list or JSON."""
    if status and (code := text(extra.get("code"))):
        return INVISIBLE.sub("", code)[:_MAX_CODE]
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
    return INVISIBLE.sub("", ", ".join(values))[:_MAX_CODE].strip() or None


def is_outcome(status: str, code: str | None, metric: str) -> bool:
    """Return whether a record without numbers has an outcome. For a numeric metric `ok` is none: it has no
    value."""
    if status not in {"", "ok"}:
        return True
    if code is None:
        return False
    is_number = is_known(metric) and metric_info(metric).kind != "status"  # an unknown one may have texts
    return not is_number or (not status and status_of_code(code, metric) != "ok")


def status_of_code(code: str | None, metric: str) -> str:
    """Return the status of a code. An unknown code is an outcome only for a status metric."""
    if not code:
        return "ok"
    return status_of(code) or ("cannot_tell" if metric_info(metric).kind == "status" else "ok")


def meaning_of(metric: Metric) -> tuple[str, str]:
    """Return unit and direction of a metric as its record says them, '' for what it does not. Raise
    WrongRecord for a unit that cannot be stored, or a direction that is none."""
    extra = metric.extra_info or {}
    unit = _word(extra.get("unit"), "/metric/extra_info/unit") or _word(metric.unit, "/metric/unit")
    direction = _word(extra.get("direction"), "/metric/extra_info/direction")
    if len(unit) > _MAX_UNIT:
        raise WrongRecord("/metric/extra_info/unit", f"the unit is longer than {_MAX_UNIT} characters")
    if character := invisible_in(unit):
        raise WrongRecord("/metric/extra_info/unit", f"the unit holds the invisible character {character}")
    word = direction.strip().lower().replace(" ", "_").replace("-", "_")
    if word not in _DIRECTIONS:
        known = "up, down, none, or words such as higher_is_better"
        raise WrongRecord("/metric/extra_info/direction", f"{direction[:60]!r} is no direction: {known}")
    return canonical_unit(nfc(unit.strip())), _DIRECTIONS[word]


def _word(value: Any, pointer: str) -> str:
    if value is not None and not isinstance(value, str):
        raise WrongRecord(pointer, f"{str(value)[:60]!r} is no text")
    return value or ""


def message_of(extra: dict[str, Any]) -> str | None:
    """Return the reason of a status and the warning of a value as one text."""
    words = (" ".join(text(extra.get(name)).split()) for name in ("reason", "warning"))
    return INVISIBLE.sub("", "; ".join(filter(None, words)))[:_MAX_MESSAGE].strip() or None


def is_accuracy_code(word: str) -> bool:
    """Return whether torchdynamo's harness writes this word into its accuracy column."""
    numbered = _NUMBERED.fullmatch(word)
    return word in ACCURACY_CODES or (numbered is not None and numbered[1] in _AT_BATCH)


def status_of(code: str) -> str | None:
    """Return our status for an outside code, or None if no system is known to write it."""
    numbered = _NUMBERED.fullmatch(code)
    return _AT_BATCH.get(numbered[1]) if numbered else _CODES.get(code)


def status_of_error(text: str) -> tuple[str, str]:
    """Return our status and a short code for an error text: a known code, else a traceback's last line."""
    text = text.strip()
    if known := status_of(text):
        return known, text
    status = next((name for name, pattern in _ERRORS if pattern.search(text)), "failed")
    last = text.rsplit("\n", 1)[-1].strip() or "an error without words"
    return status, last[:_MAX_CODE]
