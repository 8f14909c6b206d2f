"""An example format: a line `stopwatch`, then a case and its milliseconds on each line."""

from collections.abc import Iterator

from runner.formats.errors import Fault
from runner.formats.format import Format, Item, LocatedRecord
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.scalars import number
from runner.schema.records import Benchmark, Metric, Model, Record


def read(body: bytes, filename: str) -> Iterator[Item]:
    for line, text in enumerate(body.decode().splitlines()[1:], start=2):
        case, _, cell = text.partition(" ")
        value_ms = number(cell)
        if value_ms is None:
            yield Fault("", "a line is CASE MILLISECONDS", line)
        else:
            yield LocatedRecord(
                Record(Benchmark("stopwatch"), Model(case), Metric("nap_ms", [value_ms])), "", line
            )


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    measurement.suite = "stopwatch"


FORMAT = Format(
    "stopwatch",
    matches=lambda preview: preview.header == ["stopwatch"],
    read=read,
    describe={"stopwatch": describe},
)
