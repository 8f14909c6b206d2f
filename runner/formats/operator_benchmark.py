"""PyTorch's operator_benchmark: a CSV with a row for each case, and v3 records for its dashboard.

Source: `benchmarks/operator_benchmark/benchmark_core.py`, _output_csv and _output_json. Times are µs, peak
memory is KB of 1024 bytes, here called KiB. A CSV says neither backend nor dtype; CI's names of files do, as
`expected_ci_operator_benchmark_eager_float32_cpu.csv`, whose values are expectations.
"""

import re
from collections.abc import Mapping

from runner.formats.layout import Layout, Quantity
from runner.formats.measurement import ParsedMeasurement, info_of, warn_of_backend
from runner.formats.parameters import Parameters
from runner.formats.scalars import base_name, text
from runner.schema.records import Record

_MODES = {"True": "training", "False": "inference"}
_OF_JSON = {"latency": "latency_us", "forward latency": "latency_us", "backward latency": "latency_us"}
_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")
_DEVICE = re.compile(rf"_({'|'.join(_DEVICES)})(?=_|$)")
_DTYPE = re.compile(r"_dtype(?:torch\.)?(\w+?)(?=_|$)")
_FILE_DTYPE = re.compile(r"_(float32|float16|bfloat16|int8|int32)(?=_|\.|$)")
_BACKENDS = {"eager": "eager", "compile": "inductor", "jit": "jit"}
_CHECK_S_MARGIN = 0.5  # of check_perf_csv.py
_NO_VALUE = ("peak memory", "memory bandwidth")  # 0: a device whose memory is not counted, no traffic


def _said_by_name(filename: str) -> Mapping[str, str]:
    stem = base_name(filename).lower()
    expected = {"expected": "1"} if "expected" in stem else {}
    if "operator_benchmark" not in stem and "op_benchmark" not in stem and "microbenchmark" not in stem:
        return expected
    words = set(re.split(r"[_.]", stem))
    hints = {"backend": next((_BACKENDS[word] for word in _BACKENDS if word in words), "")}
    dtype = _FILE_DTYPE.search(stem)
    hints["dtype"] = dtype[1] if dtype else ""
    hints["device"] = next((device for device in _DEVICES if device in words), "")
    hints["arch"] = "cpu-aarch64" if "aarch64" in words else ""
    return expected | {name: value for name, value in hints.items() if value}


_LAYOUT = Layout(
    "PyTorch operator benchmark",
    case="Case Name",
    quantities={
        "Execution Time": Quantity("latency_us"),
        "Peak Memory (KB)": Quantity("peak memory"),
        "Memory Bandwidth (GB/s)": Quantity("memory bandwidth"),
    },
    suite="operator_benchmark",
    mode=lambda row: _MODES.get(row.get("run_backward", ""), ""),
    margin=lambda row: _CHECK_S_MARGIN if row.get("expected") else None,
    zero=dict.fromkeys(_NO_VALUE, "not_run"),
    by_name=_said_by_name,
)


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    """Complete a row or a dashboard's record by the name of its case."""
    info = info_of(record)
    name = record.model.name
    measurement.metric = _OF_JSON.get(measurement.metric, measurement.metric)
    measurement.unit = "KiB" if measurement.unit == "kB" else measurement.unit
    device, dtype = _DEVICE.search(name), _DTYPE.search(name)
    if not text(info.get("device")) and device:
        measurement.device = device[1]
    if not record.benchmark.dtype and dtype:
        measurement.dtype = dtype[1]
    if isinstance(info.get("use_compile"), bool):
        measurement.backend = "inductor" if info["use_compile"] else "eager"
    warn_of_backend(measurement, "operator_benchmark")
    _LAYOUT.describe(measurement, record, given)


FORMAT = _LAYOUT.of_tables(
    "operator_benchmark",
    {"Benchmarking Framework", "Case Name", "Execution Time"}.issubset,
    describe=dict.fromkeys((_LAYOUT.benchmark, "PyTorch operator microbenchmark"), describe),
)
