"""operatorbench's CSV: quantiles over shapes of eager's time by the backend's, and mean times.

Source: `benchmarks/dynamo/microbenchmarks/operatorbench.py`. With two backends it has a third column group,
`a/b`, whose mean time stands in the header and never in a row. Mean times are ms on CUDA and s on a CPU.
Eager's own mean time is an experiment of its own, with backend eager: it tells a slower host apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from runner.formats import Placed, reasons
from runner.formats.errors import BadUpload, Fault
from runner.formats.table import Row, below, header, not_a_number, number, pointer, rows, too_long
from runner.records import Benchmark, Metric, Model, Record

_COLUMN = re.compile(r"(?P<backend>\S.*) (?P<metric>\d+th|abs)")
_FILE = re.compile(
    r"operatorbench_(?P<inputs>timm|huggingface|torchbench|own(?:-[0-9a-f]{8})?)_"
    r"(?P<dtype>b?float16|float32)"
)
_ABS = {"unit_as_written": "ms on CUDA, s on a CPU"}


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the columns say it
    return _is_header(header(body))


def _is_header(columns: list[str]) -> bool:
    return columns[:1] in (["operator"], ["Operator"]) and any(map(_COLUMN.fullmatch, columns[1:]))


def read(body: bytes, filename: str) -> Iterator[Placed]:
    lines = rows(body)
    first = next(lines, None)
    if first is None or not _is_header(first.cells):
        line = first.line if first else None
        raise BadUpload(
            "this is no CSV of operatorbench", [Fault("", "columns operator,inductor 20th,…", line)]
        )
    columns = [_meaning(column, first.cells) for column in first.cells[1:]]
    said = said_by_name(filename)
    hints = {"dtype": said["dtype"]} if said else {}
    info = {"inputs": said["inputs"]} if said else {}
    for row in below(lines, first.cells):
        yield from _records(row, first.cells, columns, hints, info)


def said_by_name(filename: str) -> Mapping[str, str]:
    found = _FILE.match(PurePosixPath(filename.replace("\\", "/")).name)
    return found.groupdict() if found else {}


def _meaning(column: str, columns: list[str]) -> tuple[str, str]:
    """Backend and metric of a column."""
    found = _COLUMN.fullmatch(column)
    if found:
        return found["backend"], found["metric"]
    backends = [name.removesuffix(" 50th") for name in columns if name.endswith(" 50th") and "/" not in name]
    return "+".join(backends), column  # `elapsed` is the time of all of them


def _records(
    row: Row,
    names: list[str],
    columns: list[tuple[str, str]],
    hints: dict[str, str],
    info: dict[str, str],
) -> Iterator[Placed]:
    if len(row.cells) > len(names):
        yield too_long(row, len(names))
        return
    if not row.cells[0]:
        yield Placed(None, "", row.line, fault=Fault("", "the operator has no name", row.line))
        return
    for name, (backend, metric), text in zip(names[1:], columns, row.cells[1:], strict=False):
        never_there = metric == "abs" and "/" in backend
        value = number(text)
        if not text:
            if not never_there:
                yield Placed(None, pointer(name), row.line, skip=reasons.EMPTY_CELL)
        elif value is None:
            yield not_a_number(row, name, text)
        else:
            record = Record(
                Benchmark("operatorbench", "inference", extra_info=dict(info)),
                Model(row.cells[0], "operator", backend),
                Metric(metric, [value], extra_info=_ABS if metric == "abs" else None),
            )
            yield Placed(record, pointer(name), row.line, hints=hints)
    missing = columns[len(row.cells) - 1 :]
    if any(metric != "abs" or "/" not in backend for backend, metric in missing):
        yield Placed(None, "", row.line, skip=reasons.SHORT_ROW)
