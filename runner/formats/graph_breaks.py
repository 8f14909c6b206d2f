"""torchdynamo's lists of graph breaks: `*_graph_breaks.csv`, and `*_deduped.csv` without repetitions.

A list becomes counts for each model; the reasons go with the record.
"""

from collections.abc import Iterator, Mapping

from runner.formats.errors import Fault
from runner.formats.format import FileWarning, Format, Item, LocatedRecord
from runner.formats.table import table
from runner.formats.torchdynamo.names import file_hints, kind_in_name, said_by_name
from runner.schema.records import Benchmark, Metric, Model, Record

_COLUMNS = ["model", "reason", "user_stack"]
_MAX_REASONS = 50
_SHARED = "a reason that several models have is listed once, for one of them"


def read(body: bytes, filename: str) -> Iterator[Item]:
    _columns, lines = table(
        body, lambda cells: cells == _COLUMNS, "list of graph breaks", f"columns {','.join(_COLUMNS)}"
    )
    found: dict[str, list[str]] = {}
    began: dict[str, int | None] = {}
    for row in lines:
        if isinstance(row, Fault) or len(row.cells) != len(_COLUMNS) or not row.cells[0]:
            yield Fault("", "a row has a model, a reason, a stack", row.line)
            continue
        found.setdefault(row.cells[0], []).append(row.cells[1].strip('"'))
        began.setdefault(row.cells[0], row.line)
    deduped = "_deduped" in filename
    if deduped and found:
        yield FileWarning(_SHARED)
    hints = file_hints(filename)
    info = {"accuracy": True} if kind_in_name(filename) == "accuracy" else {}
    for model, listed in found.items():
        distinct = list(dict.fromkeys(listed))
        name = "graph_breaks_listed_deduped" if deduped else "graph_breaks_listed"
        metrics = [Metric(name, [len(listed)], extra_info={"reasons": distinct[:_MAX_REASONS]})]
        for metric in (
            metrics if deduped else [*metrics, Metric("unique_graph_breaks_listed", [len(distinct)])]
        ):
            record = Record(Benchmark("TorchInductor", extra_info=info), Model(model, "OSS model"), metric)
            yield LocatedRecord(record, "", began[model], hints)


def _said_by_name(filename: str) -> Mapping[str, str]:
    deduped = {"deduped": "1"} if "_deduped" in filename else {}
    return {**said_by_name(filename), **deduped}


FORMAT = Format(
    "graph_breaks", matches=lambda preview: preview.header == _COLUMNS, read=read, said_by_name=_said_by_name
)
