"""pr_time_benchmarks: `name,metric,value` without a header, and its expected results,
`name,metric,expected,noise margin`, whose values are expectations.

Source: `benchmarks/dynamo/pr_time_benchmarks`, append_results and check_results.py. Between the expected
results stand blank lines, against merge conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.formats.errors import BadUpload, Fault
from runner.formats.format import Format, Item
from runner.formats.layout import Layout, Quantity
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.scalars import number
from runner.formats.table import rows
from runner.schema.devices import device_kind
from runner.schema.records import Record

_VALUE = Quantity(lambda row: str(row["metric"]))
_LAYOUT = Layout("pr_time_benchmarks", case="name", quantities={"value": _VALUE, "expected": _VALUE})


def _fits(cells: list[str]) -> bool:
    return len(cells) in {3, 4} and all(cells[:2]) and all(number(cell) is not None for cell in cells[2:])


def read(body: bytes, filename: str) -> Iterator[Item]:
    lines = list(rows(body))
    if not lines or not _fits(lines[0].cells):
        detail = "name,metric,value or name,metric,expected,noise margin"
        place = lines[0].line if lines else None
        raise BadUpload("this is no file of pr_time_benchmarks", [Fault("", detail, place)])
    expected = all(len(row.cells) == 4 for row in lines)
    for row in lines:
        margin = number(row.cells[3]) if expected else None
        if len(row.cells) not in {3, 4} or not all(row.cells[:2]):
            yield row.fault("a row has a name, a metric and a value")
        elif expected and margin is None:
            yield row.not_a_number("noise_margin", row.cells[3])
        else:
            columns = ["name", "metric", "expected" if expected else "value", "noise_margin"]
            yield from _LAYOUT.records(row.by_column(columns), "", row.line, margin=margin)


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    """Complete a measurement from its name: the file says nothing else."""
    words = measurement.case.split("_")
    measurement.suite = _LAYOUT.benchmark
    measurement.backend = next((word for word in words if word in {"eager", "inductor"}), "")
    measurement.device = "cuda" if "gpu" in words else "cpu"
    if measurement.device == "cuda" and device_kind(measurement.device_name) == "cpu":
        measurement.device_name = ""  # the host's, given for the whole file
    measurement.dynamic |= "dynamic" in words


FORMAT = Format(
    "pr_time",
    matches=lambda preview: _fits(preview.header),
    read=read,
    describe={_LAYOUT.benchmark: describe},
)
