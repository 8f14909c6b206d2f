"""tritonbench: a CSV with a row for each shape and columns `<kernel>-<metric>`, and the JSON of the same.

Source: `tritonbench/utils/triton_op.py`, write_csv_to_file and userbenchmark_dict, and `benchmarks/*/run.py`,
whose result.json holds several operators' metrics with an environment. Cells are divided by semicolons, times
are ms. Each shape is an experiment of its own; averages over shapes are in both files and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.formats import reasons
from runner.formats.format import FileWarning, Format, Item, LocatedRecord, Preview, Skipped, each, is_json
from runner.formats.measurement import ParsedMeasurement, knobs_of
from runner.formats.parameters import Parameters
from runner.formats.scalars import base_name, finite, number, shortened, text
from runner.formats.statuses import status_of_error
from runner.formats.table import Row, pointer, table
from runner.schema.records import Benchmark, Json, Metric, Model, Record

if TYPE_CHECKING:
    from runner.formats.json_text import Value

_BENCHMARK = "tritonbench"
_METRICS = {  # by column, as the registry calls them; of others the name is the column's
    "latency": "latency_ms",  # PyTorch HUD's own `latency` is in seconds
    "compile_time": "compile_time_ms", "mem_footprint_compression_ratio": "compression_ratio",
    "speedup": "speedup", "accuracy": "accuracy", "tflops": "tflops", "gbps": "gbps", "walltime": "walltime",
    "cpu_peak_mem": "cpu_peak_mem", "gpu_peak_mem": "gpu_peak_mem", "cuda_time": "cuda_time",
}  # fmt: skip
_TEXTS = {  # columns without numbers
    "best_config", "all_configs", "kernel_source_hash", "kineto_trace", "ncu_rep", "ncu_rep_ir", "nsys_rep",
    "att_trace", "compile_trace", "compile_time_by_stage", "error_msg", "ir_analysis", "proton",
}  # fmt: skip
_OTHERS = ("hw_roofline", "nsys_gpu_speedup")
_COLUMN = re.compile(rf"(?P<kernel>.+)-(?P<metric>{'|'.join((*_METRICS, *_TEXTS, *_OTHERS))})")
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
_FILE = re.compile(r"^(?:op_)?(?P<operator>[A-Za-z]\w*?)(?:_[a-z0-9_]{8})?\.(?:csv|json)$")
_UNNAMED = (
    "nothing says the operator: a CSV of tritonbench has it in its file's name, gemm.csv or op_gemm_….csv."
    " Send the name with the upload: ?filename=gemm.csv"
)


@dataclass(frozen=True)
class _Value:
    """A number or text of one kernel and shape. `kernel` is '' for what belongs to the shape alone."""

    operator: str
    shape: str
    kernel: str
    metric: str
    value: Json


def _is_header(columns: list[str]) -> bool:
    return len(columns) > 1 and any(_COLUMN.fullmatch(name) for name in columns[1:])


def _matches(preview: Preview) -> bool:
    if preview.is_json:
        return b'"tritonbench_' in preview.start and _is_result(preview.first_value)
    return _is_header(preview.columns(";"))


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and any(name.startswith("tritonbench_") for name in _metrics_of(value))


def _metrics_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found = value.get("metrics")
    return found if isinstance(found, dict) else value


def read(body: bytes, filename: str) -> Iterator[Item]:
    if is_json(body):
        from runner.formats import json_text

        what = "tritonbench's metrics are called tritonbench_OPERATOR[…]"
        return each(json_text.values(body, _is_result, what), _of_value)
    return _read_csv(body, filename)


def _read_csv(body: bytes, filename: str) -> Iterator[Item]:
    operator = _operator_in(filename)
    columns, lines = table(body, _is_header, "CSV of tritonbench", "columns x_val;KERNEL-latency;…", ";")
    if not operator:
        yield FileWarning(_UNNAMED)

    def records(row: Row) -> Iterator[Item]:
        if reason := _NO_SHAPES.get(row.cells[0]):
            yield Skipped("", reason, row.line)
        elif len(row.cells) != len(columns):
            yield row.fault(f"the row has {len(row.cells)} cells, the header {len(columns)}")
        else:
            for name, cell in zip(columns[1:], row.cells[1:], strict=True):
                found = _COLUMN.fullmatch(name)
                kernel, metric = found.group("kernel", "metric") if found else name.rpartition("-")[::2]
                value = _Value(operator, row.cells[0], kernel, metric, cell)
                yield _item(value, {}, pointer(name), row.line)

    yield from each(lines, records)


def _operator_in(filename: str) -> str:
    found = _FILE.match(base_name(filename))
    return found["operator"] if found else ""


def _of_value(item: Value) -> Iterator[Item]:
    metrics = _metrics_of(item.value)
    inner = "" if metrics is item.value else "/metrics"
    for name, value in metrics.items():
        yield _of_entry(name, value, item.value, f"{item.pointer}{inner}{pointer(name)}", item.line)


def _of_entry(name: str, value: Json, whole: Mapping[str, Json], place: str, line: int | None) -> Item:
    if passed := _PASS.fullmatch(name):
        outcome = _outcome("pass", "ok") if value else _outcome("fail_to_run", "failed")
        found = _Value(passed["operator"], "", "", "accuracy", None)
        return LocatedRecord(_record(found, outcome, whole), place, line)
    said = _SHAPE.fullmatch(name)
    if said is None or _AVERAGE.fullmatch(name) or _TARGET.fullmatch(name):
        average = reasons.AVERAGE_ROW if _AVERAGE.fullmatch(name) else reasons.UNKNOWN_NAME
        return Skipped(place, reasons.TARGET if _TARGET.fullmatch(name) else average, line)
    operator, shape, kernel, metric = (said[part] or said[f"{part}_old"] for part in _PARTS)
    if metric is None:  # a column without a kernel is of the shape alone, as `hw_roofline`
        kernel, metric = "", kernel
    if shape in _NO_SHAPES:
        return Skipped(place, _NO_SHAPES[shape], line)
    return _item(_Value(operator, shape, kernel, metric, value), whole, place, line)


def _item(found: _Value, whole: Mapping[str, Json], place: str, line: int | None) -> Item:
    """Return the record of a value, or why it is none; a text in a number's place tells of a failure."""
    value = found.value
    if value is None or value == "":
        return Skipped(place, reasons.EMPTY_CELL, line)
    if isinstance(value, str):
        value = number(value.split(" (±", maxsplit=1)[0])
    sample = float(value) if isinstance(value, bool) else finite(value)
    name = found.metric
    if name.split("-", maxsplit=1)[0] in _TEXTS or (sample is None and name not in _METRICS):
        return Skipped(place, reasons.NOT_A_NUMBER, line)
    if sample is None:
        status, code = status_of_error(str(found.value))
        metric = Metric(_METRICS[name], extra_info={"status": status, "code": code})
    elif name == "accuracy":
        metric = _outcome("pass", "ok") if sample else _outcome("fail_accuracy", "wrong")
    else:
        metric = Metric(_METRICS.get(name, name), [sample])
    return LocatedRecord(_record(found, metric, whole), place, line)


def _outcome(code: str, status: str) -> Metric:
    return Metric("accuracy", extra_info={"benchmark_values": [code], "status": status})


def _record(found: _Value, metric: Metric, whole: Mapping[str, Json]) -> Record:
    operator, mode, dtype = found.operator, "", ""
    if said := _MODE.search(operator):
        operator, mode = operator[: said.start()], _MODES[said["mode"]]
    if said := _DTYPE.match(operator):
        operator, dtype = operator[said.end() :], _DTYPES.get(said["dtype"], said["dtype"])
    environment = whole.get("env") or whole.get("environ")
    environment = environment if isinstance(environment, dict) else {}
    commits = {name: text(environment.get(f"{name}_commit")) for name in ("pytorch", "triton", "tritonbench")}
    versions = {"torch": {"sha": commits["pytorch"]}, "triton": {"version": commits["triton"]}}
    cuda = text(environment.get("cuda_version"))
    info: dict[str, Any] = {"knobs": {"shape": shortened(found.shape)} if found.shape else {}}
    info["arch"] = text(environment.get("device"))
    return Record(
        Benchmark(_BENCHMARK, mode or None, dtype or None, info),
        Model(shortened(operator) or "operator", "operator", found.kernel or None),
        metric,
        runners=[{"extra_info": {"cuda": cuda}}] if cuda else None,
        dependencies={name: said for name, said in versions.items() if any(said.values())} or None,
        head_sha=commits["tritonbench"][:64] or None,
        repo="meta-pytorch/tritonbench" if commits["tritonbench"] else None,
    )


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    measurement.suite = "tritonbench"
    measurement.knobs = knobs_of(record)
    if measurement.metric in {"latency_ms", "speedup", "tflops", "gbps"}:
        measurement.zero_is("failed")


FORMAT = Format(
    "tritonbench",
    matches=_matches,
    read=read,
    describe={_BENCHMARK: describe},
    said_by_name=lambda filename: {"operator": _operator_in(filename)},
)
