"""PyTorch/XLA's `metric_report.csv`, its `database.csv`, and `metric_report.jsonl`: results.jsonl summed up.

Source: `benchmarks/result_analyzer.py`. A line for each experiment; of each metric the least, median and
largest value, and mean and standard deviation without the first run. -1 stands for no value. Upload
results.jsonl itself where it is at hand: it has every run.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.formats import reasons, xla
from runner.formats.format import either
from runner.formats.layout import VALUE, Layout, Located, Outcome, Quantity, Reading
from runner.formats.scalars import number_of, numbers_in, shortened, text
from runner.formats.statuses import status_of_error
from runner.formats.table import pointer

_NEEDED = {"suite_name", "model_name", "accelerator", "xla", "dynamo", "test"}
_AXES = ("accelerator", "accelerator_model", "xla", "xla_flags", "dynamo", "torch_xla2", "test")
_METRIC = re.compile(r"(min|median|max|mean|std)_\w.*|xla_median_\w.*|(xla|dynamo)_compile_time")
_NONE = {"", "None", "nan", "NaN"}


def _of_line(value: dict[str, Any]) -> Iterator[Located]:
    said = {**value["dimensions"], **value["metrics"]}
    failed = "failed" if said.get("run_status") == "failure" else ""
    return _cells(said, value["metrics"], text(value.get("error_message")) or failed, "/metrics")


def _cells(
    said: Mapping[str, Any], measured: Mapping[str, Any], error: str, place: str = ""
) -> Iterator[Located]:
    """Yield each value of a line; without any, why there is none."""
    shared = _experiment(said)
    if not text(shared["case"]):
        yield "/dimensions/model_name" if place else "/model_name", {"case": "", VALUE: None}
        return
    cells = {name: cell for name, cell in measured.items() if _METRIC.fullmatch(name)}
    for name, cell in cells.items():
        yield place + pointer(name), {**shared, "metric": shortened(name), VALUE: cell}
    if all(number_of(cell) in {None, -1} for cell in cells.values()):
        status, code = status_of_error(error) if error else ("not_run", "no_value")
        yield place, {**shared, "metric": "median_total_time", VALUE: Outcome(status=status, code=code)}


def _reading(cell: Any, metric: str) -> Reading:
    if str(cell) in _NONE:
        return reasons.EMPTY_CELL
    return reasons.NO_VALUE_WRITTEN if number_of(cell) == -1 else numbers_in(cell)


def _experiment(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same experiment as that of the line of results.jsonl."""
    experiment = {name: None if str(said.get(name)) in _NONE else said.get(name) for name in _AXES}
    experiment = {name: value for name, value in experiment.items() if value not in (None, "False")}
    if "run_status" in said and experiment.get("accelerator") == experiment.get("accelerator_model"):
        experiment["accelerator"] = ""  # the lines have the model's name there
    size, iterations = number_of(said.get("batch_size")), number_of(said.get("iterations_per_run"))
    if size is not None and size > 0:
        experiment["batch_size"] = int(size)
    value: dict[str, Any] = {"experiment": experiment, "model": said, "timestamp": said.get("timestamp")}
    return xla.experiment_of(
        value if iterations is None else {**value, "iterations_per_run": int(iterations)}
    )


_LAYOUT = Layout(
    "PyTorch/XLA benchmark report",
    quantities={VALUE: Quantity(read=_reading)},
    suite="xla",
    time="timestamp",
)
_CSV = _LAYOUT.of_tables(
    "xla_report",
    _NEEDED.issubset,
    entries=lambda row: _cells(row, row, row.get("error_message") or ""),
)
_JSON = _LAYOUT.of_json("xla_report", {"metrics": dict, "dimensions": dict}, _of_line)
FORMAT = either(_JSON, _CSV)
