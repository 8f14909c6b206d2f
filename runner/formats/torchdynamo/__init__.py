"""CSVs of torchdynamo's benchmark harness: speedup, accuracy, tolerance, coverage, AOT statistics and
compile phases, old headers and new ones.

Source: `benchmarks/dynamo/common.py`, output_csv. It writes by place, not by name: a longer header
replaces the one before it, and shorter rows are filled up with "0". Where that makes a number's name
doubtful, the number is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.catalog.metrics import METRICS
from runner.formats import Placed, reasons, v3
from runner.formats.errors import BadUpload, Fault
from runner.formats.json_text import is_json
from runner.formats.table import Row, below, header, not_a_number, number, pointer, rows, too_long
from runner.formats.torchdynamo.compiler_names import file_hints, kind_in_name
from runner.records import Benchmark, Metric, Model, Record

_FIRST = ["dev", "name", "batch_size"]
_NOT_METRICS = {*_FIRST, "tag"}
_WHOSE_PHASES = (
    "the columns are named after the first model that had as many compile phases; only its row is kept where"
    " another row has fewer. The .json file beside this one names each value itself."
)


@dataclass
class _Table:
    columns: list[str]
    kind: str
    hints: Mapping[str, str]
    extra: dict[str, Any] = field(default_factory=dict)  # of every record's benchmark.extra_info
    tag: int | None = None  # place of its column

    def record(self, row: Row, metric: Metric) -> Record:
        device, name, size = row.cells[:3]
        tag = row.cells[self.tag] if self.tag is not None and self.tag < len(row.cells) else ""
        info = {"device": device, "batch_size": int(size) or None, **self.extra}
        if tag and size != "0":  # the row of a failure has no tag; its first value stands there
            info["tag"] = tag
        return Record(Benchmark("TorchInductor", extra_info=info), Model(name, "OSS model"), metric)

    def cell(self, row: Row, column: str) -> str:
        """The text in a column, '' where the row or the header does not have it."""
        place = self.columns.index(column) if column in self.columns else len(row.cells)
        return row.cells[place] if place < len(row.cells) else ""

    def placed(self, row: Row, column: str, metric: Metric) -> Placed:
        return Placed(self.record(row, metric), pointer(column), row.line, hints=self.hints)

    def skipped(self, row: Row, reason: str, place: str = "") -> Placed:
        return Placed(None, place, row.line, skip=reason)


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the columns say it
    return header(body)[:3] == _FIRST and len(header(body)) > 3


def read(body: bytes, filename: str) -> Iterator[Placed]:
    """A record for each number. The JSON lines that the harness writes beside a CSV are v3 records."""
    if is_json(body):
        yield from v3.read(body, filename)
        return
    lines = rows(body)
    first = next(lines, None)
    if first is None or first.cells[:3] != _FIRST:
        raise BadUpload(
            "this is no CSV of torchdynamo's harness",
            [Fault("", f"the header begins with {','.join(_FIRST)}", first.line if first else None)],
        )
    table, lines = _table(first.cells, filename), below(lines, first.cells)
    if table.kind == "phases":
        yield from _phases(table, list(lines))
        return
    for row in lines:
        wrong = _wrong(table, row)
        yield from [wrong] if wrong else _metrics(table, row)


def said_by_name(filename: str) -> Mapping[str, str]:
    return {**file_hints(filename), "kind": kind_in_name(filename)}


def _table(columns: list[str], filename: str) -> _Table:
    kind = _kind(columns)
    extra = {kind: True} if kind in {"accuracy", "tolerance", "coverage"} else {}
    if kind == "statistics" and kind_in_name(filename) == "accuracy":
        extra = {"accuracy": True}
    tag = columns.index("tag") if "tag" in columns else None
    return _Table(columns, kind, file_hints(filename), extra, tag)


def _kind(columns: list[str]) -> str:
    names = set(columns[3:])
    for mark, kind in (
        ("accuracy", "accuracy"),
        ("speedup", "performance"),
        ("total_aot_graphs", "statistics"),
        ("pct_ops", "coverage"),
    ):
        if mark in names:
            return kind
    if names - {"tag"} == {"max", "mean", "std"}:
        return "tolerance"
    return "performance" if names & METRICS.keys() else "phases"


def _wrong(table: _Table, row: Row) -> Placed | None:
    """What makes a row unreadable, None for one that can be read."""
    if len(row.cells) > len(table.columns):
        return too_long(row, len(table.columns))
    if len(row.cells) < 4:
        detail = "a row has a device, a name, a batch size and a value"
        return Placed(None, "", row.line, fault=Fault("", detail, row.line))
    if not row.cells[1]:
        return Placed(None, "/name", row.line, fault=Fault("/name", "the model has no name", row.line))
    if not row.cells[2].isascii() or not row.cells[2].isdecimal() or len(row.cells[2]) > 9:
        return not_a_number(row, "batch_size", row.cells[2])
    return None


def _metrics(table: _Table, row: Row) -> Iterator[Placed]:
    if row.cells[2] == "0":
        yield from _failure(table, row)
        return
    for column, text in zip(table.columns[3:], row.cells[3:], strict=False):
        if column not in _NOT_METRICS:
            yield _value(table, row, column, text)
    if len(row.cells) < len(table.columns):
        yield table.skipped(row, reasons.SHORT_ROW)


def _value(table: _Table, row: Row, column: str, text: str) -> Placed:
    if not text:
        return table.skipped(row, reasons.EMPTY_CELL, pointer(column))
    if column == "accuracy":
        return table.placed(row, column, Metric(column, extra_info={"benchmark_values": [text]}))
    value = number(text)
    if value is None:
        return not_a_number(row, column, text)
    return table.placed(row, column, Metric(column, [value]))


def _failure(table: _Table, row: Row) -> Iterator[Placed]:
    """The row written for a model that raised: batch size 0, a code or zeros, the rest filled up with 0."""
    said = ["accuracy"] if table.kind == "accuracy" else ["speedup", "abs_latency"]
    said = [column for column in said if column in table.columns] or table.columns[3:4]
    for column in said:
        text = table.cell(row, column)
        if column == "accuracy" and number(text) == 0:
            text = table.cell(row, "tag")  # a failure's row has no tag, so its code stands one place before
        yield _value(table, row, column, text)
    if len(table.columns) > 3 + len(said):
        yield table.skipped(row, reasons.FILLED_UP)


def _phases(table: _Table, lines: list[Row]) -> Iterator[Placed]:
    """Compile phases in seconds. The header is the longest one, so a row filled up with "0" (every number
    has digits after its point) is not the header's; with such rows in a file, none but the first row that
    is full can be told to be."""
    good: list[Row] = []
    mixed = False
    for row in lines:
        wrong = _wrong(table, row)
        if wrong:
            yield wrong
        elif row.cells[2] == "0":
            yield table.skipped(row, reasons.FILLED_UP)
        elif len(row.cells) < len(table.columns) or row.cells[-1] == "0":
            mixed = True
            yield table.skipped(row, reasons.ANOTHER_HEADER)
        else:
            good.append(row)
    if mixed or len(good) > 1:
        yield Placed(None, "", warning=_WHOSE_PHASES)
    for place, row in enumerate(good):
        if mixed and place > 0:
            yield table.skipped(row, reasons.UNTOLD_HEADER)
        else:
            yield from _metrics(table, row)
