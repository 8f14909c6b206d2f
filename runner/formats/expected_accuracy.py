"""Expected outcome and graph breaks of each model in PyTorch's CI: `ci_expected_accuracy/*.csv`.

Source: `benchmarks/dynamo/check_accuracy.py` and `check_graph_breaks.py`. The oldest files have the graph
breaks alone. They become a run of their own source, to be compared with real ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.format import FileWarning, Format, Item, LocatedRecord, Skipped
from runner.formats.scalars import number
from runner.formats.table import pointer, table
from runner.formats.torchdynamo.arguments import describe
from runner.formats.torchdynamo.compiler_names import file_hints
from runner.schema.records import Benchmark, Metric, Model, Record

_BENCHMARK = "TorchInductor, expected by CI"
_HEADERS = (["name", "accuracy", "graph_breaks"], ["name", "accuracy"], ["name", "graph_breaks"])
_WARNING = "these are the results that CI expects; they were not measured"


def read(body: bytes, filename: str) -> Iterator[Item]:
    columns, lines = table(
        body, _HEADERS.__contains__, "list of expected results", "name,accuracy,graph_breaks"
    )
    yield FileWarning(_WARNING)
    hints = file_hints(filename)
    for row in lines:
        if isinstance(row, Fault):
            yield row
            continue
        cells = dict(zip(columns, row.cells, strict=False))
        for column in columns[1:]:
            cell = cells.get(column, "")
            metric = Metric(column, extra_info={"benchmark_values": [cell]})
            if not cell:
                yield Skipped(pointer(column), reasons.EMPTY_CELL, row.line)
                continue
            if column == "graph_breaks":
                value = number(cell)
                if value is None:
                    yield row.not_a_number(column, cell)
                    continue
                metric = Metric(column, [value])
            benchmark = Benchmark(_BENCHMARK, extra_info={"accuracy": True})
            record = Record(benchmark, Model(cells["name"], "OSS model"), metric)
            yield LocatedRecord(record, pointer(column), row.line, hints)


FORMAT = Format(
    "expected_accuracy",
    matches=lambda preview: preview.header in _HEADERS,
    read=read,
    describe={_BENCHMARK: describe},
    said_by_name=file_hints,
)
