"""tritonbench: a CSV with a row for each shape and columns `<kernel>-<metric>`, and the JSON of the same.

Source: `tritonbench/utils/triton_op.py`, write_csv_to_file and userbenchmark_dict, and `benchmarks/*/run.py`,
whose result.json holds several operators' metrics with an environment. Cells are divided by semicolons, times
are ms. Each shape is an experiment of its own; averages over shapes are in both files and left out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.formats import reasons
from runner.formats.format import either
from runner.formats.layout import VALUE, Entry, Layout, Located, Outcome, Quantity, Reading
from runner.formats.measurement import ParsedMeasurement
from runner.formats.metric_values import status_of_error
from runner.formats.scalars import finite, groups_in_name, number, shortened, text
from runner.formats.table import pointer
from runner.schema.records import Record, object_of
from runner.schema.tables import rows

_ROWS = rows(__file__, "tritonbench.csv")
_METRICS = {row["column"]: row["metric"] for row in _ROWS if row["metric"]}
_TEXTS = {row["column"] for row in _ROWS if row["holds"] == "texts"}
_COLUMN = re.compile(rf"(?P<kernel>.+)-(?P<metric>{'|'.join(row['column'] for row in _ROWS)})")
_SHAPE = re.compile(
    r"tritonbench_(?P<operator>\w+?)\[x_(?P<shape>.+)-(?P<kernel>[\w.+]+)\]_(?P<metric>[\w-]*)"
    r"|tritonbench_(?P<operator_old>\w+?)\[(?P<shape_old>.+)-(?P<kernel_old>\w+)-(?P<metric_old>[a-z_]+)\]"
)
_PARTS = ("operator", "shape", "kernel", "metric")
_AVERAGE = re.compile(r"tritonbench_\w+\[.+\]-[^\]]*-avg")
_PASS = re.compile(r"tritonbench_(?P<operator>\w+)-pass")
_TARGET = re.compile(r"tritonbench_.+-target")
_MODE = re.compile(r"_(?P<mode>fwd|bwd|fwd_bwd|fwd_no_grad)$")
_MODES = {"fwd": "inference", "fwd_no_grad": "inference", "bwd": "training", "fwd_bwd": "training"}
_DTYPE = re.compile(r"^(?P<dtype>fp16|bf16|fp32|fp8|int4)_")
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "float8"}
_NO_SHAPES = {"average": reasons.AVERAGE_ROW, "hashes": reasons.NOT_A_NUMBER}
_FILE = r"(?:op_)?(?P<operator>[A-Za-z]\w*?)(?:_[a-z0-9_]{8})?\.(?:csv|json)"
_UNKNOWN = "operator"  # the case of a file that does not name it
_UNNAMED = (
    "nothing says the operator: a CSV of tritonbench has it in its file's name, gemm.csv or op_gemm_….csv."
    " Send the name with the upload: ?filename=gemm.csv"
)


def _is_header(columns: list[str]) -> bool:
    return len(columns) > 1 and any(_COLUMN.fullmatch(name) for name in columns[1:])


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and any(name.startswith("tritonbench_") for name in _metrics_of(value))


def _metrics_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    metrics = value.get("metrics")
    return metrics if isinstance(metrics, dict) else value


def _of_row(row: dict[str, Any]) -> Iterator[Located]:
    """Yield each cell with its shape, kernel and metric."""
    (_column, shape), *cells = row.items()
    if reason := _NO_SHAPES.get(shape):
        yield "", reason
        return
    for name, cell in cells:
        match = _COLUMN.fullmatch(name)
        kernel, metric = match.group("kernel", "metric") if match else name.rpartition("-")[::2]
        yield pointer(name), {"shape": shape, "kernel": kernel, "metric": metric, VALUE: cell}


def _of_value(value: dict[str, Any]) -> Iterator[Located]:
    """Yield each metric with what its name says, or why it is none."""
    metrics = _metrics_of(value)
    if not _is_result(value):
        yield "", "an object without tritonbench_OPERATOR[…]"
        return
    inner = "" if metrics is value else "/metrics"
    shared = {"environment": object_of(value.get("env") or value.get("environ"))}
    for name, cell in metrics.items():
        cells = _of_name(name, cell)
        yield inner + pointer(name), cells if isinstance(cells, str) else {**shared, **cells}


def _of_name(name: str, cell: Any) -> Entry | str:
    if passed := _PASS.fullmatch(name):
        code = "pass" if cell else "fail_to_run"
        return {"operator": passed["operator"], "metric": "accuracy", VALUE: code}
    if _TARGET.fullmatch(name):
        return reasons.TARGET
    match = _SHAPE.fullmatch(name)
    if match is None or _AVERAGE.fullmatch(name):
        return reasons.AVERAGE_ROW if _AVERAGE.fullmatch(name) else reasons.UNKNOWN_NAME
    operator, shape, kernel, metric = (match[part] or match[f"{part}_old"] for part in _PARTS)
    if metric is None:  # a column without a kernel is of the shape alone, as `hw_roofline`
        kernel, metric = "", kernel
    entry = {"operator": operator, "shape": shape, "kernel": kernel, "metric": metric, VALUE: cell}
    return _NO_SHAPES.get(shape, entry)


def _reading(cell: Any, metric: str) -> Reading:
    """Return the value of a cell. A text in a number's place tells of a failure."""
    value = number(cell.split(" (±", maxsplit=1)[0]) if isinstance(cell, str) else cell
    sample = float(value) if isinstance(value, bool) else finite(value)
    if metric.split("-", maxsplit=1)[0] in _TEXTS or (sample is None and metric not in _METRICS):
        return reasons.NOT_A_NUMBER
    if sample is None:
        status, code = status_of_error(str(cell))
    elif metric == "accuracy":
        status, code = ("ok", "pass") if sample else ("wrong", "fail_accuracy")
    else:
        return [sample]
    return Outcome(status=status, code=code)


def _more(entry: Entry) -> dict[str, Any]:
    environment = entry.get("environment", {})
    commits = {name: text(environment.get(f"{name}_commit")) for name in ("pytorch", "triton", "tritonbench")}
    versions = {"torch": {"sha": commits["pytorch"]}, "triton": {"version": commits["triton"]}}
    cuda = text(environment.get("cuda_version"))
    return {
        "runners": [{"extra_info": {"cuda": cuda}}] if cuda else None,
        "dependencies": {name: said for name, said in versions.items() if any(said.values())} or None,
        "head_sha": commits["tritonbench"][:64] or None,
        "repo": "meta-pytorch/tritonbench" if commits["tritonbench"] else None,
    }


def _complete(measurement: ParsedMeasurement, record: Record) -> None:
    """Take mode and dtype out of the operator's name."""
    measurement.metric = _METRICS.get(measurement.metric, measurement.metric)
    operator = measurement.case
    if match := _MODE.search(operator):
        operator, measurement.mode = operator[: match.start()], _MODES[match["mode"]]
    if match := _DTYPE.match(operator):
        operator, measurement.dtype = operator[match.end() :], _DTYPES.get(match["dtype"], match["dtype"])
    measurement.case = operator or _UNKNOWN
    measurement.warning = _UNNAMED if measurement.case == _UNKNOWN else ""


_LAYOUT = Layout(
    "tritonbench",
    case=lambda entry: entry.get("operator") or _UNKNOWN,
    quantities={VALUE: Quantity(read=_reading)},
    suite="tritonbench",
    backend="kernel",
    arch="/environment/device",
    parameters={"shape": lambda entry: shortened(entry.get("shape", ""))},
    more=_more,
    by_name=groups_in_name(_FILE),
    complete=_complete,
    zero=dict.fromkeys(("latency_ms", "speedup", "tflops", "gbps"), "failed"),
)
FORMAT = either(
    _LAYOUT.of_json(
        "tritonbench",
        {},
        _of_value,
        matches=lambda preview: b'"tritonbench_' in preview.start and _is_result(preview.first_value),
    ),
    _LAYOUT.of_tables("tritonbench", _is_header, delimiter=";", entries=_of_row, whole_rows=True),
)
