"""pr_time_benchmarks: `name,metric,value` without a header, and its expected results,
`name,metric,expected,noise margin`, whose values are expectations.

Source: `benchmarks/dynamo/pr_time_benchmarks`, append_results and check_results.py. The script appends, so
that further rows of a benchmark are later runs. Between the expected results stand blank lines, against merge
conflicts.
"""

from collections.abc import Iterator

from runner.formats.errors import BadUpload, Fault
from runner.formats.format import Format, Item
from runner.formats.layout import VALUE, Layout
from runner.formats.measurement import ParsedMeasurement
from runner.formats.scalars import number
from runner.formats.table import rows
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


_LAYOUT = Layout("pr_time_benchmarks", suite="pr_time_benchmarks", margin="margin", complete=_complete)


def _fits(cells: list[str]) -> bool:
    return len(cells) in {3, 4} and all(cells[:2]) and all(number(cell) is not None for cell in cells[2:])


def read(body: bytes, filename: str) -> Iterator[Item]:
    lines = list(rows(body))
    if not lines or not _fits(lines[0].cells):
        detail = "name,metric,value or name,metric,expected,noise margin"
        first_line = lines[0].line if lines else None
        raise BadUpload("this is no file of pr_time_benchmarks", [Fault("", detail, first_line)])
    is_expected = all(len(row.cells) == 4 for row in lines)
    place = "/expected" if is_expected else "/value"
    for row in lines:
        margin = number(row.cells[3]) if is_expected else None
        if len(row.cells) not in {3, 4} or not all(row.cells[:2]):
            yield row.fault("a row has a name, a metric and a value")
        elif is_expected and margin is None:
            yield row.not_a_number("noise_margin", row.cells[3])
        else:
            entry = {"case": row.cells[0], "metric": row.cells[1], VALUE: row.cells[2], "margin": margin}
            yield from _LAYOUT.records(entry, place, row.line)


FORMAT = Format(
    "pr_time",
    matches=lambda preview: _fits(preview.header),
    read=read,
    describe={_LAYOUT.benchmark: _LAYOUT.describe},
)
