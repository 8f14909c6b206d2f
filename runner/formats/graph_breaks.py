"""torchdynamo's lists of graph breaks: `*_graph_breaks.csv`, and `*_deduped.csv` without repetitions.

A list becomes counts for each model; the reasons go with the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.formats import Placed
from runner.formats.errors import BadUpload, Fault
from runner.formats.table import below, header, rows
from runner.formats.torchdynamo.compiler_names import file_hints, kind_in_name
from runner.records import Benchmark, Metric, Model, Record

_COLUMNS = ["model", "reason", "user_stack"]
_MAX_REASONS = 50
_SHARED = "a reason that several models have is listed once, for one of them"


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the columns say it
    return header(body) == _COLUMNS


def read(body: bytes, filename: str) -> Iterator[Placed]:
    lines = rows(body)
    first = next(lines, None)
    if first is None or first.cells != _COLUMNS:
        line = first.line if first else None
        raise BadUpload("this is no list of graph breaks", [Fault("", f"columns {','.join(_COLUMNS)}", line)])
    found: dict[str, list[str]] = {}
    began: dict[str, int] = {}
    for row in below(lines, _COLUMNS):
        if len(row.cells) != len(_COLUMNS) or not row.cells[0]:
            yield Placed(
                None, "", row.line, fault=Fault("", "a row has a model, a reason, a stack", row.line)
            )
            continue
        found.setdefault(row.cells[0], []).append(row.cells[1].strip('"'))
        began.setdefault(row.cells[0], row.line)
    deduped = "_deduped" in filename
    if deduped and found:
        yield Placed(None, "", warning=_SHARED)
    hints = file_hints(filename)
    accuracy_run = kind_in_name(filename) == "accuracy"
    for model, listed in found.items():
        for metric in _metrics(listed, deduped=deduped):
            info = {"accuracy": True} if accuracy_run else {}
            record = Record(Benchmark("TorchInductor", extra_info=info), Model(model, "OSS model"), metric)
            yield Placed(record, "", began[model], hints=hints)


def said_by_name(filename: str) -> Mapping[str, str]:
    deduped = {"deduped": "1"} if "_deduped" in filename else {}
    return {**file_hints(filename), "kind": kind_in_name(filename), **deduped}


def _metrics(listed: list[str], *, deduped: bool) -> list[Metric]:
    distinct = list(dict.fromkeys(listed))
    said = {"reasons": distinct[:_MAX_REASONS]}
    if deduped:
        return [Metric("graph_breaks_listed_deduped", [len(listed)], extra_info=said)]
    return [
        Metric("graph_breaks_listed", [len(listed)], extra_info=said),
        Metric("unique_graph_breaks_listed", [len(distinct)]),
    ]
