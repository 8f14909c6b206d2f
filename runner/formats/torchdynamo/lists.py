"""Lists that torchdynamo's harness and PyTorch's CI keep.

Graph breaks, `*_graph_breaks.csv` and `*_deduped.csv` without repetitions, become counts for each model; the
reasons go with the record.

Expected outcome and graph breaks of each model, `ci_expected_accuracy/*.csv`. Source:
`benchmarks/dynamo/check_accuracy.py` and `check_graph_breaks.py`. The oldest files have the graph breaks
alone. Their records are expectations: `inductor` stands for inductor with or without CUDA graphs, and the
folder says the kind of device where it is called rocm, xpu or after a version of CUDA. Intel's list for XPU
(torch-xpu-ops, `.github/ci_expected_accuracy/`) has a column for each dtype, and comments between the rows.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.formats.errors import Fault
from runner.formats.format import FileWarning, Format, Item, LocatedRecord
from runner.formats.layout import VALUE, Layout, Located, Outcome
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.table import pointer, table
from runner.formats.torchdynamo import arguments
from runner.formats.torchdynamo.names import file_hints, kind_in_name, named, said_by_name
from runner.schema.records import Benchmark, Metric, Model, Record

_BREAKS = ["model", "reason", "user_stack"]
_MAX_REASONS = 50
_SHARED = "a reason that several models have is listed once, for one of them"
_EXPECTED = "TorchInductor, expected by CI"
_COLUMNS = {"accuracy", "graph_breaks", "calls_captured", "unique_graphs", "fallbacks_to_eager"}
_DTYPE = re.compile(
    r"(?:(?P<mode>inference|training)_)?(?P<dtype>float32|bfloat16|float16|amp|amp_bf16|amp_fp16|int8|quant)"
    r"(?:_(?P<mode_after>inference|training))?"
)
_COMMENT = re.compile(rb"^#[^\r\n]*", re.MULTILINE)
_DEVICE_FOLDER = re.compile(r"(?:^|/)(?:(rocm|xpu)|cu(?:da)?[\d.]+)[^/]*/[^/]*$", re.IGNORECASE)


def _read_breaks(body: bytes, filename: str) -> Iterator[Item]:
    _columns, lines = table(body, lambda cells: cells == _BREAKS, "list of graph breaks")
    reasons: dict[str, list[str]] = {}
    first_lines: dict[str, int] = {}
    for row in lines:
        if isinstance(row, Fault) or len(row.cells) != len(_BREAKS) or not row.cells[0]:
            yield Fault("", "a row has a model, a reason, a stack", row.line)
            continue
        reasons.setdefault(row.cells[0], []).append(row.cells[1].strip('"'))
        first_lines.setdefault(row.cells[0], row.line)
    deduped = "_deduped" in filename
    if deduped and reasons:
        yield FileWarning(_SHARED)
    hints = file_hints(filename)
    info = {"accuracy": True} if kind_in_name(filename) == "accuracy" else {}
    for model, listed in reasons.items():
        distinct = list(dict.fromkeys(listed))
        name = "graph_breaks_listed_deduped" if deduped else "graph_breaks_listed"
        metrics = [Metric(name, [len(listed)], extra_info={"reasons": distinct[:_MAX_REASONS]})]
        metrics += [] if deduped else [Metric("unique_graph_breaks_listed", [len(distinct)])]
        for metric in metrics:
            record = Record(Benchmark("TorchInductor", extra_info=info), Model(model, "OSS model"), metric)
            yield LocatedRecord(record, "", first_lines[model], hints)


GRAPH_BREAKS = Format(
    "graph_breaks",
    matches=lambda preview: preview.columns() == _BREAKS,
    read=_read_breaks,
    said_by_name=lambda name: {**said_by_name(name), **({"deduped": "1"} if "_deduped" in name else {})},
)


def _is_header(columns: list[str]) -> bool:
    is_plain = columns[:1] == ["name"] and len(columns) > 1 and _COLUMNS.issuperset(columns[1:])
    return is_plain or _is_by_dtype(columns)


def _is_by_dtype(columns: list[str]) -> bool:
    outcomes = [column for column in columns if column not in {"suite", "name"}]
    return "name" in columns[:2] and bool(outcomes) and all(map(_DTYPE.fullmatch, outcomes))


def _cells(row: dict[str, Any]) -> Iterator[Located]:
    """Yield the cell of each column, which is for a dtype or a count."""
    columns = [*row]
    shared = {"case": row.pop("name") or "", "origin": row.pop("suite", "")}
    by_dtype = _is_by_dtype(columns)
    for column, cell in row.items():
        match = _DTYPE.fullmatch(column) if by_dtype else None
        mode, dtype = (match["mode"] or match["mode_after"], match["dtype"]) if match else (None, None)
        metric = "accuracy" if by_dtype else column
        value = Outcome(benchmark_values=[cell]) if cell and metric == "accuracy" else cell or ""
        benchmark = Benchmark(_EXPECTED, mode, dtype, {"accuracy": True})
        yield pointer(column), {**shared, "metric": metric, "benchmark": benchmark, VALUE: value}


def _hints(filename: str) -> Mapping[str, str]:
    folder = _DEVICE_FOLDER.search(filename.replace("\\", "/"))
    return {**file_hints(filename), "device": folder[1] or "cuda"} if folder else file_hints(filename)


def _describe_expected(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    compiler = named(measurement.backend)
    if record.benchmark.dtype and not measurement.device:  # Intel's list
        measurement.device = "xpu"
    arguments.describe(measurement, record, parameters)
    if compiler and compiler.cudagraphs is None:
        measurement.backend = compiler.name("")


def _read_expected(body: bytes, filename: str) -> Iterator[Item]:
    for item in _CSV.read(_COMMENT.sub(b"", body), filename):
        if isinstance(item, LocatedRecord):
            item.is_expected = True
        yield item


_CSV = Layout(_EXPECTED, more=lambda entry: {"benchmark": entry["benchmark"]}, by_name=_hints).of_tables(
    "expected_accuracy", _is_header, entries=_cells, describe={_EXPECTED: _describe_expected}
)
EXPECTED_ACCURACY = replace(_CSV, read=_read_expected)
FORMATS = (GRAPH_BREAKS, EXPECTED_ACCURACY)
