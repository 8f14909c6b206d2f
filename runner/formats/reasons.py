"""The reasons in a receipt why a part of a file did not become a measurement."""

from collections.abc import Mapping
from typing import Any

NO_METRIC = "the record has no metric"
NO_VALUES = "the metric has no values"
EMPTY_CELL = "the cell is empty"
NULL_VALUE = "the value is null"
TAG = "the tag of a run is a setting, no metric"
FILLED_UP = "the row tells of a failure; the script filled its other columns with 0"
SHORT_ROW = "the row is shorter than the header; its last columns have no values"
ANOTHER_HEADER = "the row has fewer compile phases than the header, which is another model's"
UNTOLD_HEADER = "other rows do not fit the header, and whether this one does cannot be told"
BAD_JSON = "the JSON of the line cannot be read"
AVERAGE_ROW = "the row is the average over the shapes, which have rows of their own"
AGGREGATE = "the entry is an aggregate of repetitions, which have entries of their own"
NOT_A_NUMBER = "the column holds texts, not numbers"
UNKNOWN_NAME = "the metric's name is not made as this benchmark makes them"
TARGET = "the value is a target of the benchmark's own, not a measurement"
NO_VALUE_WRITTEN = "-1 is how the script writes that there is no value"
NO_NUMBER_INSIDE = "the counters hold no number"
OTHER_VALUE = "this upload holds the same experiment and metric with another value"
STORED_VALUE = "the run already has this experiment and metric with another value"
TOO_MANY_TIMES = "the run has this experiment and metric at too many times"
CLOSED_RUN = "the run is one of this hud's own runner, to which an upload adds nothing"
OTHER_TASK = "the record does not belong to the task"
UNEXPECTED = "the runner marked the record: it does not belong to the task that wrote it"

REASONS = tuple(value for name, value in dict(globals()).items() if name.isupper())

# What an entry is: part of a model's own failure, which is stored; nothing that could be stored; another
# value than the stored one; or, as what has no reason of this list, a refused result.
_MOST_LISTED = 20  # skipped parts that a command prints
FAILURE, IGNORED, CONFLICT, REFUSED = "failure", "ignored", "conflict", "refused"
_KINDS = {
    FILLED_UP: FAILURE,
    OTHER_VALUE: CONFLICT,
    STORED_VALUE: CONFLICT,
    **dict.fromkeys((BAD_JSON, TOO_MANY_TIMES, CLOSED_RUN, OTHER_TASK, UNEXPECTED), REFUSED),
}


def kind_of(reason: str) -> str:
    """Return the kind of an entry by its reason, which may have details behind a colon; one that is not
    listed here is a fault's text."""
    return _KINDS.get(reason.partition(": ")[0], IGNORED if reason in REASONS else REFUSED)


def place_of(entry: Mapping[str, Any]) -> str:
    """Return the place of a fault or of a skipped part in words: ``line 3 /metric/name``."""
    line = f"line {entry['line']} " if entry.get("line") else ""
    return f"{line}{entry.get('pointer') or ''}".strip()


def receipt_lines(receipt: Mapping[str, Any]) -> list[str]:
    """Return a receipt as a command prints it."""
    skipped = receipt.get("skipped", [])
    total = receipt.get("skipped_total", len(skipped))
    kinds = ", ".join(f"{count} {kind}" for kind, count in receipt.get("skipped_kinds", {}).items())
    counts = f"stored {receipt['stored']}, duplicate {receipt['duplicates']}, skipped {total}"
    lines = [f"{counts} ({kinds})" if kinds else counts]
    lines += [f"  skipped {place_of(entry)}: {entry.get('reason', '')}" for entry in skipped[:_MOST_LISTED]]
    lines += [f"  and {total - _MOST_LISTED} more"] if total > _MOST_LISTED else []
    lines += [f"  warning: {text}" for text in receipt.get("warnings", [])]
    for metric in receipt.get("metrics", []):
        if metric["new"]:
            unit = metric["unit"] or "no unit"
            lines.append(f"  new metric {metric['name']}: {unit}, {metric['direction']}")
    return lines


def is_all_stored(receipt: Mapping[str, Any]) -> bool:
    """Return whether every result of a receipt is stored, now or earlier: the exit status of commands."""
    kinds = receipt.get("skipped_kinds", {})
    return bool(receipt["stored"] or receipt["duplicates"]) and not (
        kinds.get(REFUSED) or kinds.get(CONFLICT)
    )
