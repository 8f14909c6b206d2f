"""pr_time_benchmarks: `name,metric,value` without a header, and its expected results,
`name,metric,expected,noise margin`, whose values are expectations.

Source: `benchmarks/dynamo/pr_time_benchmarks`, append_results and check_results.py. The script appends, so
that further rows of a benchmark are later runs. Between the expected results stand blank lines, against merge
conflicts.
"""

from collections.abc import Iterator
from typing import Any

from runner.formats.layout import Layout, Located, Quantity
from runner.formats.measurement import ParsedMeasurement
from runner.formats.scalars import number
from runner.schema.devices import device_kind
from runner.schema.records import Record


def _complete(measurement: ParsedMeasurement, record: Record) -> None:
    """Complete a measurement from its name: the file says nothing else."""
    words = measurement.case.split("_")
    measurement.backend = next((word for word in words if word in {"eager", "inductor"}), "")
    measurement.device = "cuda" if "gpu" in words else "cpu"
    if measurement.device == "cuda" and device_kind(measurement.device_name) == "cpu":
        measurement.device_name = ""  # the host's, given for the whole file
    measurement.dynamic |= "dynamic" in words
    measurement.is_appended = True


def _fits(cells: list[str]) -> bool:
    return len(cells) in {3, 4} and all(cells[:2]) and all(number(cell) is not None for cell in cells[2:])


def _columns(first: list[str]) -> list[str]:
    return ["case", "metric", *(["expected", "noise_margin"] if len(first) == 4 else ["value", "other"])]


def _of_row(row: dict[str, Any]) -> Iterator[Located]:
    yield "", row if row.get("expected", row.get("value")) is not None else "a row without a value"


FORMAT = Layout(
    "pr_time_benchmarks",
    quantities={"value": Quantity(), "expected": Quantity()},
    suite="pr_time_benchmarks",
    margin="noise_margin",
    complete=_complete,
).of_tables("pr_time", _fits, names=_columns, entries=_of_row)
