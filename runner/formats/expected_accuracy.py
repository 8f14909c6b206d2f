"""Expected outcome and graph breaks of each model in PyTorch's CI: `ci_expected_accuracy/*.csv`.

Source: `benchmarks/dynamo/check_accuracy.py` and `check_graph_breaks.py`. The oldest files have the graph
breaks alone. Their records are expectations: `inductor` stands for inductor with or without CUDA graphs, and
the folder says the kind of device where it is called rocm, xpu or after a version of CUDA.

Intel's list for XPU (torch-xpu-ops, `.github/ci_expected_accuracy/`) has a column for each dtype, and
comments between the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.format import Format, Item, LocatedRecord, Skipped, each
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.scalars import number
from runner.formats.table import Row, pointer, table
from runner.formats.torchdynamo import arguments
from runner.formats.torchdynamo.names import file_hints, named
from runner.schema.records import Benchmark, Metric, Model, Record

_BENCHMARK = "TorchInductor, expected by CI"
_COLUMNS = {"accuracy", "graph_breaks", "calls_captured", "unique_graphs", "fallbacks_to_eager"}
_DTYPE = re.compile(
    r"(?:(?P<mode>inference|training)_)?(?P<dtype>float32|bfloat16|float16|amp|amp_bf16|amp_fp16|int8|quant)"
    r"(?:_(?P<mode_after>inference|training))?"
)
_COMMENT = re.compile(rb"^#[^\r\n]*", re.MULTILINE)
_DEVICE_FOLDER = re.compile(r"(?:^|/)(?:(rocm|xpu)|cu(?:da)?[\d.]+)[^/]*/[^/]*$", re.IGNORECASE)


def _is_header(columns: list[str]) -> bool:
    is_plain = columns[:1] == ["name"] and len(columns) > 1 and _COLUMNS.issuperset(columns[1:])
    return is_plain or is_by_dtype(columns)


def is_by_dtype(columns: list[str]) -> bool:
    outcomes = [column for column in columns if column not in {"suite", "name"}]
    return "name" in columns[:2] and bool(outcomes) and all(map(_DTYPE.fullmatch, outcomes))


def table_of(body: bytes) -> tuple[list[str], Iterator[Row | Fault]]:
    """Return columns and rows of a list. Raise BadUpload if it is none."""
    header = "name,accuracy,graph_breaks or name,float32,bfloat16,…"
    return table(_COMMENT.sub(b"", body), _is_header, "list of expected results", header)


def facts_of_column(column: str) -> Mapping[str, str]:
    """Return what the column of a dtype is for: its dtype (amp_bf16 is amp), and its mode if it says one."""
    mode, dtype = _said_by_column(column)
    facts = {"dtype": dtype.partition("_")[0]}
    return {**facts, "mode": mode} if mode else facts


def read(body: bytes, filename: str) -> Iterator[Item]:
    columns, lines = table_of(body)
    hints = _said_by_name(filename)
    if by_dtype := is_by_dtype(columns):
        hints = {**hints, "device": "xpu"}

    def records(row: Row) -> Iterator[Item]:
        cells = row.by_column(columns)
        suite, name = cells.pop("suite", ""), cells.pop("name")
        model = Model(name, "OSS model", origins=[suite] if suite else None)
        for column, cell in cells.items():
            value = number(cell)
            mode, dtype = _said_by_column(column) if by_dtype else (None, None)
            if not cell:
                yield Skipped(pointer(column), reasons.EMPTY_CELL, row.line)
                continue
            if by_dtype or column == "accuracy":
                metric = Metric("accuracy", extra_info={"benchmark_values": [cell]})
            elif value is not None:
                metric = Metric(column, [value])
            else:
                yield row.not_a_number(column, cell)
                continue
            benchmark = Benchmark(_BENCHMARK, mode, dtype, {"accuracy": True})
            record = Record(benchmark, model, metric)
            yield LocatedRecord(record, pointer(column), row.line, hints, is_expected=True)

    return each(lines, records)


def _said_by_name(filename: str) -> Mapping[str, str]:
    folder = _DEVICE_FOLDER.search(filename.replace("\\", "/"))
    return {**file_hints(filename), "device": folder[1] or "cuda"} if folder else file_hints(filename)


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    compiler = named(measurement.backend)
    arguments.describe(measurement, record, given)
    if compiler and compiler.cudagraphs is None:
        measurement.backend = compiler.name("")


def _said_by_column(column: str) -> tuple[str | None, str]:
    """Return the mode and dtype that the column of a dtype means."""
    found = _DTYPE.fullmatch(column)
    assert found is not None
    return found["mode"] or found["mode_after"], found["dtype"]


FORMAT = Format(
    "expected_accuracy",
    matches=lambda preview: _is_header(preview.header),
    read=read,
    describe={_BENCHMARK: describe},
    said_by_name=_said_by_name,
)
