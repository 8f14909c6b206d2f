"""operatorbench's CSV: a row for each operator; for each backend the quantiles over shapes of eager's time by
the backend's, and mean times.

Source: `benchmarks/dynamo/microbenchmarks/operatorbench.py`. With two backends it has a third column group,
`a/b`, whose mean time stands in the header and never in a row. Mean times are ms on CUDA and s on a CPU.
Eager's own mean time is an experiment of its own, with backend eager: it tells a slower host apart.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.formats import reasons
from runner.formats.format import Writer, unsaid
from runner.formats.layout import VALUE, Layout, Located
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.formats.scalars import base_name
from runner.formats.table import csv_text, pointer
from runner.schema.records import Json, Record
from runner.schema.statistics import median, quantiles
from runner.schema.suite import TaskSpec, suite_of
from runner.schema.tasks import TaskResult

_COLUMN = re.compile(r"(?P<backend>\S.*) (?P<metric>\d+th|abs)")
_FILE = re.compile(
    r"operatorbench_(?P<inputs>timm|huggingface|torchbench|own(?:-[0-9a-f]{8})?)_"
    r"(?P<dtype>b?float16|float32)"
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


def _is_header(columns: list[str]) -> bool:
    return columns[:1] in (["operator"], ["Operator"]) and any(map(_COLUMN.fullmatch, columns[1:]))


def _said_by_name(filename: str) -> Mapping[str, str]:
    found = _FILE.match(base_name(filename))
    return found.groupdict() if found else {}


def _cells(row: dict[str, Any]) -> Iterator[Located]:
    """Yield each cell with its backend and metric; `elapsed` is the time of all backends."""
    operator, *columns = row
    backends = [name.removesuffix(" 50th") for name in columns if name.endswith(" 50th") and "/" not in name]
    is_short = False
    for name in columns:
        parts = _COLUMN.fullmatch(name)
        meaning = parts.groupdict() if parts else {"backend": "+".join(backends), "metric": name}
        is_never_filled = meaning["metric"] == "abs" and "/" in meaning["backend"]
        if row[name] is not None and (row[name] or not is_never_filled):
            yield pointer(name), {"case": row[operator], **meaning, VALUE: row[name]}
        is_short |= row[name] is None and not is_never_filled
    if is_short:
        yield "", reasons.SHORT_ROW


_LAYOUT = Layout(
    "operatorbench",
    suite="operators",
    mode=lambda _row: "inference",
    parameters={"inputs": "inputs"},
    by_name=_said_by_name,
)


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    _LAYOUT.describe(measurement, record, given)
    measurement.backend = measurement.backend or "inductor"
    if measurement.metric == "abs":
        measurement.warning = "" if measurement.device else _DEVICE_UNSAID
        if measurement.device == "cpu":
            measurement.samples = [sample * 1000 for sample in measurement.samples]


def _unsupported_reason(task: TaskSpec) -> str:
    if task.backend not in _BACKENDS:
        return f"it knows only {' and '.join(_BACKENDS)}"
    return unsaid(task, _PLAIN)


def _files(path: Path, tasks: Sequence[TaskSpec]) -> set[Path]:
    """Return files that are named by the records' inputs, in an environment like this one."""
    experiments = ((task, suite_of(task.suite).expected(task, os.environ)[0]) for task in tasks)
    return {_file(path, experiment.knobs["inputs"], task.dtype) for task, experiment in experiments}


def _file(path: Path, inputs: str, dtype: str) -> Path:
    folder = path.parent if path.suffix else path
    return folder / f"operatorbench_{inputs}_{dtype}.csv"


class OperatorbenchFiles:
    """Write `operatorbench_<inputs>_<dtype>.csv` in the folder PATH, or in its folder where PATH is a file.

    The script's header has a column `a/b abs` that no row fills; it is left out here. The script measures
    eager once for all backends of an operator; here each backend is a task that measures eager itself.
    Quantiles use each backend's own eager; `eager abs` is that of the first backend that has one (inductor,
    then autotune). `elapsed` is the sum over the operator's tasks, without calls that failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[str, str], dict[str, _Row]] = {}
        self._shapes: dict[tuple[str, str], dict[str, dict[str, dict[str, float]]]] = {}

    def add(self, finished: TaskResult) -> list[Path]:
        if _unsupported_reason(finished.task):
            return []
        taken = {place for record in finished.records if (place := self._take(record, finished.task.backend))}
        written = [_file(self._path, *place) for place in sorted(taken)]
        for path, place in zip(written, sorted(taken), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_csv(self._rows[place], self._shapes.get(place, {})))
        return written

    def _take(self, record: dict[str, Json], backend: str) -> tuple[str, str] | None:
        """Take a record's value; return its file, (inputs, dtype), or None. `backend` is the task's."""
        info, metric = record["benchmark"]["extra_info"], record["metric"]
        knobs, values = info["knobs"], metric.get("benchmark_values")
        place = str(knobs.get("inputs")), record["benchmark"]["dtype"]
        operator = record["model"]["name"]
        if not values:
            return None
        if set(knobs) == _PLAIN and metric["name"] in (*_QUANTILES, "abs", "elapsed"):
            in_seconds = metric["name"] == "abs" and info["device"] == "cpu"
            value = median(values) / 1000 if in_seconds else median(values)
            name = _EAGER_MEAN if record["model"]["backend"] == "eager" else metric["name"]
            self._rows.setdefault(place, {}).setdefault(operator, {})[backend, name] = value
            return place
        times_ms = metric["extra_info"].get("operatorbench_ms")
        if set(knobs) == _PLAIN | {"shape"} and times_ms:
            by_shape = self._shapes.setdefault(place, {}).setdefault(operator, {})
            by_shape.setdefault(knobs["shape"], {})[backend] = times_ms[1]
        return None


def _csv(rows: Mapping[str, _Row], shapes: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    said = {backend for row in rows.values() for backend, _metric in row}
    backends = [backend for backend in _BACKENDS if backend in said]
    both = "/".join(backends) if len(backends) > 1 else ""
    names = [*backends, *filter(None, [both])]
    heads = [f"{name} {quantile}" for name in names for quantile in _QUANTILES]
    lines = [["operator", *heads, "elapsed", *(f"{name} abs" for name in ["eager", *backends])]]
    for operator, row in rows.items():
        cells = [row.get((backend, quantile)) for backend in backends for quantile in _QUANTILES]
        if both:  # one backend's time by the other's, over the shapes that both have
            times = [one for one in shapes.get(operator, {}).values() if len(one) > 1]
            ratios = [one[backends[0]] / one[backends[1]] for one in times]
            cells += quantiles(ratios) if ratios else [None] * len(_QUANTILES)
        elapsed = [row[backend, "elapsed"] for backend in backends if (backend, "elapsed") in row]
        means = [row[backend, _EAGER_MEAN] for backend in backends if (backend, _EAGER_MEAN) in row]
        eager = means[0] if means else None
        cells += [sum(elapsed), eager, *(row.get((backend, "abs")) for backend in backends)]
        lines.append([operator, *("" if cell is None else repr(cell) for cell in cells)])
    return csv_text(lines)


FORMAT = _LAYOUT.of_tables(
    "operatorbench",
    _is_header,
    entries=_cells,
    describe={_LAYOUT.benchmark: describe},
    writer=Writer(
        "operatorbench",
        ("operators",),
        OperatorbenchFiles,
        lambda task: [f"{task.case} with {task.backend} in {task.dtype}, inputs {task.setting('inputs')}"],
        _files,
        _unsupported_reason,
    ),
)
