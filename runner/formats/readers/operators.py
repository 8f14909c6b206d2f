"""PyTorch's two benchmarks of operators: operatorbench and operator_benchmark.

operatorbench (`benchmarks/dynamo/microbenchmarks/operatorbench.py`) writes a CSV with a row for each
operator: for each backend the quantiles over shapes of eager's time by the backend's, and mean times. With
two backends it has a third column group, `a/b`, whose mean time stands in the header and never in a row. Mean
times are ms on CUDA and s on a CPU. Eager's own mean time is an experiment of its own, with backend eager: it
tells a slower host apart.

operator_benchmark (`benchmarks/operator_benchmark/benchmark_core.py`, _output_csv and _output_json) writes a
CSV with a row for each case, and v3 records for its dashboard. Times are µs, peak memory is KB of 1024 bytes,
here called KiB. A CSV says neither backend nor dtype; CI's names of files do, as
`expected_ci_operator_benchmark_eager_float32_cpu.csv`, whose values are expectations.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.formats import reasons
from runner.formats.format import Writer
from runner.formats.layout import VALUE, Layout, Located, Quantity
from runner.formats.measurement import ParsedMeasurement, info_of, warn_of_backend
from runner.formats.scalars import base_name, groups_in_name, text
from runner.formats.table import csv_text, pointer
from runner.schema.records import Record
from runner.schema.statistics import median, quantiles
from runner.schema.suite import TaskSpec, suite_of
from runner.schema.tasks import TaskResult

_COLUMN = re.compile(r"(?P<backend>\S.*) (?P<metric>\d+th|abs)")
_FILE = (
    r"operatorbench_(?P<inputs>timm|huggingface|torchbench|own(?:-[0-9a-f]{8})?)_"
    r"(?P<dtype>b?float16|float32).*"
)
_DEVICE_UNSAID = (
    "nothing says the device of operatorbench's mean times (`abs`): they are taken as a GPU's, in ms; a CPU's"
    " are in s, 1000 times that. Give it with the upload: ?device=cuda or ?device=cpu"
)
_QUANTILES = ("20th", "50th", "80th")
_BACKENDS = ("inductor", "autotune")
_PLAIN = {"inputs"}  # knobs that the file's name says
_EAGER_MEAN = "eager abs"
_Row = dict[tuple[str, str], float]  # (backend of the task, metric or eager's mean) → value
_Times = dict[tuple[str, str], dict[str, float]]  # (operator, shape) → backend → ms
# of operator_benchmark
_MODES = {"True": "training", "False": "inference"}
_OF_JSON = {"latency": "latency_us", "forward latency": "latency_us", "backward latency": "latency_us"}
_DEVICE = re.compile(r"_(cpu|cuda|xpu|mps|hpu)(?=_|$)")
_DTYPE = re.compile(r"_dtype(?:torch\.)?(\w+?)(?=_|$)")
_FILE_WORDS = {  # of the names of CI's files, by parameter
    "backend": {"eager": "eager", "compile": "inductor", "jit": "jit"},
    "dtype": {dtype: dtype for dtype in ("float32", "float16", "bfloat16", "int8", "int32")},
    "device": {device: device for device in ("cpu", "cuda", "xpu", "mps", "hpu")},
    "arch": {"aarch64": "cpu-aarch64"},
}
_CHECK_S_MARGIN = 0.5  # of check_perf_csv.py
_NO_VALUE = ("peak memory", "memory bandwidth")  # 0: a device whose memory is not counted, no traffic


def _is_header(columns: list[str]) -> bool:
    return columns[:1] in (["operator"], ["Operator"]) and any(map(_COLUMN.fullmatch, columns[1:]))


def _cells(row: dict[str, Any]) -> Iterator[Located]:
    """Yield each cell with its backend and metric; `elapsed` is the time of all backends."""
    operator, *columns = row
    backends = [name.removesuffix(" 50th") for name in columns if name.endswith(" 50th") and "/" not in name]
    never_filled = {name for name in columns if name.endswith(" abs") and "/" in name}
    cells = {name: row[name] for name in columns if row[name] or name not in never_filled}
    for name, cell in cells.items():
        parts = _COLUMN.fullmatch(name)
        meaning = parts.groupdict() if parts else {"backend": "+".join(backends), "metric": name}
        if cell is not None:
            yield pointer(name), {"case": row[operator], **meaning, VALUE: cell}
    if None in cells.values():
        yield "", reasons.SHORT_ROW


def _complete_mean(measurement: ParsedMeasurement, record: Record) -> None:
    measurement.backend = measurement.backend or "inductor"
    if measurement.metric == "abs":
        measurement.warning = "" if measurement.device else _DEVICE_UNSAID
        if measurement.device == "cpu":
            measurement.samples = [sample * 1000 for sample in measurement.samples]


def _file(path: Path, inputs: str, dtype: str) -> Path:
    folder = path.parent if path.suffix else path
    return folder / f"operatorbench_{inputs}_{dtype}.csv"


class OperatorbenchFiles(Writer):
    """Write `operatorbench_<inputs>_<dtype>.csv` in the folder PATH, or in its folder where PATH is a file.

    The script's header has a column `a/b abs` that no row fills; it is left out here. The script measures
    eager once for all backends of an operator; here each backend is a task that measures eager itself.
    Quantiles use each backend's own eager; `eager abs` is that of the first backend that has one (inductor,
    then autotune). `elapsed` is the sum over the operator's tasks, without calls that failed.
    """

    name, suites = "operatorbench", ("operators",)
    default_file = "operatorbench.csv"  # whose folder counts
    known = _PLAIN

    def places(self, task: TaskSpec) -> list[str]:
        return [f"{task.case} with {task.backend} in {task.dtype}, inputs {task.setting('inputs')}"]

    def files(self, tasks: Sequence[TaskSpec]) -> set[Path]:
        """Return files that are named by the records' inputs, in an environment like this one."""
        experiments = ((task, suite_of(task.suite).expected(task, os.environ)[0]) for task in tasks)
        return {_file(self._path, experiment.knobs["inputs"], task.dtype) for task, experiment in experiments}

    def unsupported_reason(self, task: TaskSpec) -> str:
        if task.backend not in _BACKENDS:
            return f"it knows only {' and '.join(_BACKENDS)}"
        return super().unsupported_reason(task)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # of each file, named by inputs and dtype: values by operator; mean times by operator and shape
        self._rows: dict[tuple[str, str], dict[str, _Row]] = defaultdict(lambda: defaultdict(dict))
        self._times: dict[tuple[str, str], _Times] = defaultdict(lambda: defaultdict(dict))

    def add(self, finished: TaskResult) -> list[Path]:
        backend, changed = finished.task.backend, set()
        for record in finished.records:
            info, metric = record["benchmark"]["extra_info"], record["metric"]
            knobs, values, name = info["knobs"], metric.get("benchmark_values"), metric["name"]
            operator = record["model"]["name"]
            key = str(knobs.get("inputs")), record["benchmark"]["dtype"]
            times_ms = metric["extra_info"].get("operatorbench_ms")
            if values and set(knobs) == _PLAIN and name in (*_QUANTILES, "abs", "elapsed"):
                in_seconds = name == "abs" and info["device"] == "cpu"
                name = _EAGER_MEAN if record["model"]["backend"] == "eager" else name
                self._rows[key][operator][backend, name] = median(values) / (1000 if in_seconds else 1)
                changed.add(key)
            elif values and set(knobs) == {*_PLAIN, "shape"} and times_ms:
                self._times[key][operator, knobs["shape"]][backend] = times_ms[1]
        for key in changed:
            path = _file(self._path, *key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_csv(self._rows[key], self._times[key]))
        return [_file(self._path, *key) for key in sorted(changed)]


def _csv(rows: Mapping[str, _Row], times: _Times) -> str:
    measured = {backend for row in rows.values() for backend, _metric in row}
    backends = [backend for backend in _BACKENDS if backend in measured]
    names = [*backends, "/".join(backends)] if len(backends) > 1 else backends
    heads = [f"{name} {quantile}" for name in names for quantile in _QUANTILES]
    lines = [["operator", *heads, "elapsed", *(f"{name} abs" for name in ["eager", *backends])]]
    for operator, row in rows.items():
        cells = [row.get((backend, quantile)) for backend in backends for quantile in _QUANTILES]
        if len(backends) > 1:  # one backend's time by the other's, over the shapes that both have
            of_both = [own for (name, _shape), own in times.items() if name == operator and len(own) > 1]
            ratios = [times_ms[backends[0]] / times_ms[backends[1]] for times_ms in of_both]
            cells += quantiles(ratios) if ratios else [None] * len(_QUANTILES)
        elapsed = (row.get((backend, "elapsed")) for backend in backends)
        means = (row.get((backend, _EAGER_MEAN)) for backend in backends)
        cells += [sum(filter(None, elapsed)), next(filter(None, means), None)]
        cells += [row.get((backend, "abs")) for backend in backends]
        lines.append([operator, *("" if cell is None else repr(cell) for cell in cells)])
    return csv_text(lines)


OPERATORBENCH = Layout(
    "operatorbench",
    suite="operators",
    mode=lambda _row: "inference",
    parameters={"inputs": "inputs"},
    complete=_complete_mean,
    by_name=groups_in_name(_FILE),
).of_tables("operatorbench", _is_header, entries=_cells, writer=OperatorbenchFiles)


def _settings_by_name(filename: str) -> Mapping[str, str]:
    stem = base_name(filename).lower()
    expected = {"expected": "1"} if "expected" in stem else {}
    if "operator_benchmark" not in stem and "op_benchmark" not in stem and "microbenchmark" not in stem:
        return expected
    words = re.split(r"[_.]", stem)
    meanings = {name: [known[word] for word in words if word in known] for name, known in _FILE_WORDS.items()}
    return expected | {name: names[0] for name, names in meanings.items() if names}


def _complete_case(measurement: ParsedMeasurement, record: Record) -> None:
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
    warn_of_backend(measurement, record)


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
    complete=_complete_case,
    by_name=_settings_by_name,
)
OPERATOR_BENCHMARK = _LAYOUT.of_tables(
    "operator_benchmark",
    {"Benchmarking Framework", "Case Name", "Execution Time"}.issubset,
    describe=dict.fromkeys((_LAYOUT.benchmark, "PyTorch operator microbenchmark"), _LAYOUT.describe),
)
FORMATS = (OPERATORBENCH, OPERATOR_BENCHMARK)
