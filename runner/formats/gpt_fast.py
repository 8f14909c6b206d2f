"""gpt-fast's CSV: one row for each benchmark, with the target of a 40 GB A100.

Source: `benchmarks/gpt_fast/benchmark.py`, output_csv. Rows of several runs stand in one file: it appends.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.formats import Placed, reasons, v3
from runner.formats.errors import BadUpload, Fault
from runner.formats.json_text import is_json
from runner.formats.table import Row, below, header, not_a_number, number, rows, too_long
from runner.records import Benchmark, Metric, Model, Record

_NEEDED = {"name", "metric", "target", "actual"}  # the first versions had these and a percentage


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the columns say it
    return set(header(body)) >= _NEEDED


def read(body: bytes, filename: str) -> Iterator[Placed]:
    """A record for each row. The JSON lines that it writes beside the CSV are v3 records."""
    if is_json(body):
        yield from v3.read(body, filename)
        return
    lines = rows(body)
    first = next(lines, None)
    if first is None or not set(first.cells) >= _NEEDED:
        line = first.line if first else None
        raise BadUpload(
            "this is no CSV of gpt-fast", [Fault("", "columns name,metric,target,actual,…", line)]
        )
    for row in below(lines, first.cells):
        yield _placed(row, first.cells)


def _placed(row: Row, columns: list[str]) -> Placed:
    if len(row.cells) > len(columns):
        return too_long(row, len(columns))
    said = dict(zip(columns, row.cells, strict=False))
    if not said.get("name") or not said.get("metric"):
        return Placed(None, "", row.line, fault=Fault("", "a row has a name and a metric", row.line))
    if not said.get("actual"):
        return Placed(None, "/actual", row.line, skip=reasons.EMPTY_CELL)
    for column in ("actual", "target"):
        if said.get(column) and number(said[column]) is None:
            return not_a_number(row, column, said[column])
    is_model = said.get("is_model", "").lower() == "true"
    info = {name: said[name] for name in ("device", "arch") if said.get(name)}
    return Placed(
        Record(
            Benchmark("PyTorch gpt-fast benchmark", "inference", said.get("dtype"), info),
            Model(said["name"], "OSS model" if is_model else "micro-benchmark", origins=["pytorch"]),
            Metric(said["metric"], [said["actual"]], said.get("target") or None),
        ),
        "",
        row.line,
    )
