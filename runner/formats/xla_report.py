"""PyTorch/XLA's `metric_report.csv`, its `database.csv`, and `metric_report.jsonl`: results.jsonl summed up.

Source: `benchmarks/result_analyzer.py`. A line for each experiment; of each metric the least, median and
largest value, and mean and standard deviation without the first run. -1 stands for no value. Upload
results.jsonl itself where it is at hand: it has every run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from runner.formats import reasons, xla
from runner.formats.errors import Fault
from runner.formats.format import Format, Item, LocatedRecord, Preview, Skipped, each, is_json
from runner.formats.scalars import number_of, shortened, text
from runner.formats.statuses import status_of_error
from runner.formats.table import Row, pointer, table
from runner.schema.records import Benchmark, Metric, Model, Record

if TYPE_CHECKING:
    from runner.formats.json_text import Value

_BENCHMARK = "PyTorch/XLA benchmark report"
_NEEDED = {"suite_name", "model_name", "accelerator", "xla", "dynamo", "test"}
_AXES = ("accelerator", "accelerator_model", "xla", "xla_flags", "dynamo", "torch_xla2", "test")
_METRIC = re.compile(r"(min|median|max|mean|std)_\w.*|xla_median_\w.*|(xla|dynamo)_compile_time")
_NONE = {"", "None", "nan", "NaN"}


def read(body: bytes, filename: str) -> Iterator[Item]:
    if is_json(body):
        from runner.formats import json_text

        what = "a line of the report has metrics and dimensions"
        return each(json_text.values(body, _is_line, what), _of_line)
    columns, lines = table(body, _NEEDED.issubset, "report of PyTorch/XLA", "columns suite_name,model_name,…")
    return each(lines, lambda row: _of_row(row, row.by_column(columns)))


def _of_row(row: Row, cells: Mapping[str, str]) -> Iterator[Item]:
    if not cells.get("model_name"):
        return iter([row.fault("the model has no name", "model_name")])
    return _records(cells, cells, cells.get("error_message", ""), "", row.line)


def _of_line(item: Value) -> Iterator[Item]:
    said = {**item.value["dimensions"], **item.value["metrics"]}
    if not text(item.value["dimensions"].get("model_name")):
        return iter([Fault(f"{item.pointer}/dimensions/model_name", "the model has no name", item.line)])
    failed = "failed" if said.get("run_status") == "failure" else ""
    error = text(item.value.get("error_message")) or failed
    return _records(said, item.value["metrics"], error, f"{item.pointer}/metrics", item.line)


def _is_line(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), dict) for key in ("metrics", "dimensions")
    )


def _records(
    said: Mapping[str, Any], measured: Mapping[str, Any], error: str, place: str, line: int | None
) -> Iterator[Item]:
    """Yield a record for each value of a line; without any, why there is none."""
    benchmark, model = _experiment(said)
    timestamp = number_of(said.get("timestamp"))
    values = 0
    for name, value in measured.items():
        if not _METRIC.fullmatch(name):
            continue
        found, spot = number_of(value), f"{place}{pointer(name)}"
        if found is None and str(value) not in _NONE and value is not None:
            yield Fault(spot, f"{str(value)[:60]!r} is not a number", line)
        elif found is None or found == -1:
            yield Skipped(spot, reasons.EMPTY_CELL if found is None else reasons.NO_VALUE_WRITTEN, line)
        else:
            values += 1
            record = Record(benchmark, model, Metric(shortened(name), [found]), timestamp=timestamp)
            yield LocatedRecord(record, spot, line)
    if not values:
        status, code = status_of_error(error) if error else ("not_run", "no_value")
        metric = Metric("median_total_time", extra_info={"status": status, "code": code})
        yield LocatedRecord(Record(benchmark, model, metric, timestamp=timestamp), place, line)


def _experiment(said: Mapping[str, Any]) -> tuple[Benchmark, Model]:
    """Return the same identity as that of the line of results.jsonl."""
    experiment = {name: None if str(said.get(name)) in _NONE else said.get(name) for name in _AXES}
    experiment = {name: value for name, value in experiment.items() if value not in (None, "False")}
    if "run_status" in said and experiment.get("accelerator") == experiment.get("accelerator_model"):
        experiment["accelerator"] = ""  # the lines have the model's name there
    size = number_of(said.get("batch_size"))
    if size is not None and size > 0:
        experiment["batch_size"] = int(size)
    iterations = number_of(said.get("iterations_per_run"))
    model = {"suite_name": text(said.get("suite_name")), "model_name": text(said.get("model_name"))}
    value: dict[str, Any] = {"experiment": experiment, "model": model}
    if iterations is not None:
        value["iterations_per_run"] = int(iterations)
    benchmark = xla.benchmark_of(value)
    benchmark.name = _BENCHMARK
    return benchmark, xla.model_of(value)


def _matches(preview: Preview) -> bool:
    if preview.names("metrics", "dimensions", "model_name"):
        return _is_line(preview.first_value)
    return _NEEDED.issubset(preview.header)


FORMAT = Format("xla_report", matches=_matches, read=read, describe={_BENCHMARK: xla.describe})
