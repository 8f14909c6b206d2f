"""An example format: a line `stopwatch`, then lines of a case and its milliseconds, such as `nap,1.5`."""

from collections.abc import Iterator

from runner.formats.errors import BadUpload, Fault
from runner.formats.format import Format, Item, LocatedRecord
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.scalars import number
from runner.formats.table import rows
from runner.schema.records import Benchmark, Metric, Model, Record


def read(body: bytes, filename: str) -> Iterator[Item]:
    lines = list(rows(body))
    if not lines or lines[0].cells != ["stopwatch"]:
        raise BadUpload("this is no file of a stopwatch", [Fault("", "the first line is: stopwatch")])
    for row in lines[1:]:
        value_ms = number(row.cells[1]) if len(row.cells) == 2 else None
        if value_ms is None:
            yield row.fault("a line is CASE,MILLISECONDS")
        else:
            record = Record(Benchmark("stopwatch"), Model(row.cells[0]), Metric("nap_ms", [value_ms]))
            yield LocatedRecord(record, "", row.line)


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    """Fill in what the file means. Upload parameters fill in the rest."""
    measurement.suite = "stopwatch"


FORMAT = Format(
    "stopwatch",
    matches=lambda preview: preview.header == ["stopwatch"],
    read=read,
    describe={"stopwatch": describe},
)
