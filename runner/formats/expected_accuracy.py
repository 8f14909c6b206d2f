"""What PyTorch's CI expects of each model: outcome and graph breaks, of `ci_expected_accuracy/*.csv`.

Source: `benchmarks/dynamo/check_accuracy.py` and `check_graph_breaks.py`. The oldest files have the graph
breaks alone. They become a run of their own source, to be compared with real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hud.ingest.describe import EXPECTED
from runner.formats import Placed, reasons
from runner.formats.errors import BadUpload, Fault
from runner.formats.table import Row, below, header, not_a_number, number, pointer, rows, too_long
from runner.formats.torchdynamo.compiler_names import file_hints
from runner.records import Benchmark, Metric, Model, Record

_HEADERS = (["name", "accuracy", "graph_breaks"], ["name", "accuracy"], ["name", "graph_breaks"])
_WARNING = "these are the results that CI expects; they were not measured"


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the columns say it
    return header(body) in _HEADERS


def read(body: bytes, filename: str) -> Iterator[Placed]:
    lines = rows(body)
    first = next(lines, None)
    if first is None or first.cells not in _HEADERS:
        line = first.line if first else None
        raise BadUpload(
            "this is no list of expected results", [Fault("", "name,accuracy,graph_breaks", line)]
        )
    yield Placed(None, "", warning=_WARNING)
    hints = file_hints(filename)
    for row in below(lines, first.cells):
        if len(row.cells) > len(first.cells):
            yield too_long(row, len(first.cells))
        else:
            yield from _placed(row, first.cells, hints)


def said_by_name(filename: str) -> Mapping[str, str]:
    return file_hints(filename)


def _placed(row: Row, columns: list[str], hints: Mapping[str, str]) -> Iterator[Placed]:
    said = dict(zip(columns, row.cells, strict=False))
    benchmark = Benchmark(EXPECTED, extra_info={"accuracy": True})
    for column in columns[1:]:
        text = said.get(column, "")
        if not text:
            yield Placed(None, pointer(column), row.line, skip=reasons.EMPTY_CELL)
            continue
        metric = Metric(column, extra_info={"benchmark_values": [text]})
        if column == "graph_breaks":
            value = number(text)
            if value is None:
                yield not_a_number(row, column, text)
                continue
            metric = Metric(column, [value])
        record = Record(benchmark, Model(said["name"], "OSS model"), metric)
        yield Placed(record, pointer(column), row.line, hints=hints)
