"""torchdynamo's benchmark harness: speedup, accuracy, tolerance, coverage, AOT statistics and compile phases.

Source: `benchmarks/dynamo/common.py`, output_csv. It writes by place, not by name: a longer header
replaces the one before it, and shorter rows are filled up with "0". Where that makes a number's name
doubtful, the number is left out. The JSON lines that it writes beside a CSV are v3 records.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.format import FileWarning, Format, Item, LocatedRecord, Skipped, each, is_json
from runner.formats.layout import VALUE, Layout, Outcome
from runner.formats.measurement import ZERO_CODE
from runner.formats.metric_values import status_of
from runner.formats.readers import v3
from runner.formats.scalars import number
from runner.formats.table import Row, pointer, rows, table
from runner.formats.torchdynamo import files
from runner.formats.torchdynamo.arguments import describe
from runner.formats.torchdynamo.batch_sizes import suite_of_model
from runner.formats.torchdynamo.names import file_hints, kind_in_name, said_by_name
from runner.schema.metrics import METRICS
from runner.schema.records import SUCCESS, Benchmark

_FIRST = ["dev", "name", "batch_size"]
_KINDS = {  # by a column that only its files have; the first counts
    "accuracy": "accuracy", "speedup": "performance", "total_aot_graphs": "statistics", "pct_ops": "coverage",
}  # fmt: skip
_NOT_METRICS = {*_FIRST, "tag"}
_WHOSE_PHASES = (
    "the columns are named after the first model that had as many compile phases; only its row is kept where"
    " another row has fewer. The .json file beside this one names each value itself."
)


_LAYOUT = Layout(
    "TorchInductor",
    case="name",
    kind=lambda _entry: "OSS model",
    more=lambda entry: {"benchmark": Benchmark("TorchInductor", extra_info=entry["info"])},
)


@dataclass
class _Table:
    columns: list[str]
    kind: str
    hints: Mapping[str, str]
    suite: str  # of models that no list of models knows
    extra: dict[str, Any]  # of every record's benchmark.extra_info

    def items(self, row: Row, cells: Mapping[str, str], failure: Mapping[str, str]) -> Iterator[Item]:
        """Yield what is read of these columns of a row; zeros in it stand for a failure, if it has one."""
        device, name, size = row.cells[:3]
        tag = row.by_column(self.columns).get("tag")
        info = {"device": device, "batch_size": int(size) or None, **self.extra}
        if tag and size != "0":  # the row of a failure has no tag; its first value stands there
            info["tag"] = tag
        suite = self.hints.get("suite") or suite_of_model(name) or self.suite
        hints = {**self.hints, "suite": suite} if suite else self.hints
        for column, cell in cells.items():
            value: str | Outcome = cell
            if failure and number(cell) == 0:
                value = Outcome(failure)
            elif cell and column == "accuracy":
                value = Outcome(benchmark_values=[cell])
            entry = {"name": name, "info": info, "metric": column, VALUE: value}
            for item in _LAYOUT.records(entry, pointer(column), row.line, hints):
                if isinstance(item, LocatedRecord):
                    item.row = tuple(row.cells)
                yield item


def read(body: bytes, filename: str) -> Iterator[Item]:
    """Yield a record for each number."""
    if is_json(body):
        yield from v3.read(body, filename)
        return
    columns, lines = table(body, lambda cells: cells[:3] == _FIRST, "CSV of torchdynamo's harness")
    kind = _kind(columns)
    extra = {kind: True} if kind in {"accuracy", "tolerance", "coverage"} else {}
    if kind == "statistics" and kind_in_name(filename) == "accuracy":
        extra = {"accuracy": True}
    hints = file_hints(filename)
    file = _Table(columns, kind, hints, "" if "suite" in hints else _suite_of_most(body), extra)
    lines = (row if isinstance(row, Fault) else _wrong(row) or row for row in lines)
    if kind == "phases":
        yield from _phases(file, lines)
    else:
        yield from each(lines, lambda row: _metrics(file, row))


def _suite_of_most(body: bytes) -> str:
    """Return the suite to which most models of the file belong, '' where none is known."""
    suites = (suite_of_model(row.cells[1]) for row in rows(body) if len(row.cells) > 1)
    most = Counter(filter(None, suites)).most_common(1)
    return most[0][0] if most else ""


def _kind(columns: list[str]) -> str:
    names = set(columns[3:])
    if kind := next((kind for mark, kind in _KINDS.items() if mark in names), ""):
        return kind
    if names - {"tag"} == {"max", "mean", "std"}:
        return "tolerance"
    return "performance" if names & METRICS.keys() else "phases"


def _wrong(row: Row) -> Fault | None:
    if len(row.cells) < 4:
        return row.fault("a row has a device, a name, a batch size and a value")
    if not row.cells[1]:
        return row.fault("the model has no name", "name")
    if not row.cells[2].isascii() or not row.cells[2].isdecimal() or len(row.cells[2]) > 9:
        return row.fault(f"{row.cells[2][:60]!r} is not a number", "batch_size")
    return None


def _metrics(file: _Table, row: Row) -> Iterator[Item]:
    if row.cells[2] == "0":
        yield from _failure(file, row)
        return
    cells = {
        column: cell
        for column, cell in zip(file.columns[3:], row.cells[3:], strict=False)
        if column not in _NOT_METRICS
    }
    yield from file.items(row, cells, _failure_of(file.kind, cells))
    if len(row.cells) < len(file.columns):
        yield Skipped("", reasons.SHORT_ROW, row.line)


def _failure_of(kind: str, cells: Mapping[str, str]) -> dict[str, str]:
    """Return status and code for the zeros in the row of a model that did not run, {} for one that ran."""
    if kind == "accuracy":
        word = cells.get("accuracy", "")
        status = status_of(word) or "ok"
        return {} if status in {"wrong", *SUCCESS} else {"status": status, "code": word}
    decisive = ["speedup"] if "speedup" in cells else cells
    has_failed = kind == "performance" and all(number(cells[column]) == 0 for column in decisive)
    return {"status": "failed", "code": ZERO_CODE} if has_failed else {}


def _failure(file: _Table, row: Row) -> Iterator[Item]:
    """Read the row of a model that raised: batch size 0, a code or zeros, the rest filled up with 0."""
    cells = row.by_column(file.columns)
    columns = ["accuracy"] if file.kind == "accuracy" else ["speedup", "abs_latency"]
    columns = [column for column in columns if column in file.columns] or file.columns[3:4]
    if number(cells.get("accuracy", "")) == 0:
        cells["accuracy"] = cells.get("tag", "")  # such a row has no tag: its code stands one place before
    yield from file.items(row, {column: cells[column] for column in columns}, {})
    if len(file.columns) > 3 + len(columns):
        yield Skipped("", reasons.FILLED_UP, row.line)


def _phases(file: _Table, lines: Iterator[Row | Fault]) -> Iterator[Item]:
    """Read compile phases in seconds. The header is the longest that was written; shorter rows are filled up
    with a bare "0", and their columns are unknown. If there are such rows, only the first full row surely
    fits the header."""
    good: list[Row] = []
    mixed = False
    for row in lines:
        if isinstance(row, Fault):
            yield row
        elif row.cells[2] == "0":
            yield Skipped("", reasons.FILLED_UP, row.line)
        elif len(row.cells) < len(file.columns) or row.cells[-1] == "0":
            mixed = True
            yield Skipped("", reasons.ANOTHER_HEADER, row.line)
        else:
            good.append(row)
    if mixed or len(good) > 1:
        yield FileWarning(_WHOSE_PHASES)
    for index, row in enumerate(good):
        if mixed and index > 0:
            yield Skipped("", reasons.UNTOLD_HEADER, row.line)
        else:
            yield from _metrics(file, row)


FORMAT = Format(
    "torchdynamo",
    matches=lambda preview: preview.columns()[:3] == _FIRST and len(preview.columns()) > 3,
    read=read,
    describe={"TorchInductor": describe},
    said_by_name=said_by_name,
    grows=lambda _body: True,
    writer=files.DynamoFiles,
)
