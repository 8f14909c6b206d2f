"""operatorbench's CSV: a row for each operator; for each backend the quantiles over shapes of eager's time by
the backend's, and mean times.

Source: `benchmarks/dynamo/microbenchmarks/operatorbench.py`. With two backends it has a third column group,
`a/b`, whose mean time stands in the header and never in a row. Mean times are ms on CUDA and s on a CPU.
Eager's own mean time is an experiment of its own, with backend eager: it tells a slower host apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runner.formats import reasons
from runner.formats.format import Format, Item, LocatedRecord, Skipped, Writer, each, unsaid
from runner.formats.measurement import ParsedMeasurement, info_of
from runner.formats.parameters import Parameters
from runner.formats.scalars import base_name, number
from runner.formats.table import Row, csv_text, pointer, table
from runner.schema.outcome_records import TaskResult
from runner.schema.records import Benchmark, Json, Metric, Model, Record
from runner.schema.statistics import median, quantiles
from runner.schema.suite import TaskSpec, suite_of

_COLUMN = re.compile(r"(?P<backend>\S.*) (?P<metric>\d+th|abs)")
_FILE = re.compile(
    r"operatorbench_(?P<inputs>timm|huggingface|torchbench|own(?:-[0-9a-f]{8})?)_"
    r"(?P<dtype>b?float16|float32)"
)
_ABS = {"unit_as_written": "ms on CUDA, s on a CPU"}
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


def read(body: bytes, filename: str) -> Iterator[Item]:
    names, lines = table(body, _is_header, "CSV of operatorbench", "columns operator,inductor 20th,…")
    columns = [_backend_and_metric(name, names) for name in names[1:]]
    said = _said_by_name(filename)
    hints = {"dtype": said["dtype"]} if said else {}
    info = {"inputs": said["inputs"]} if said else {}

    def records(row: Row) -> Iterator[Item]:
        if not row.cells[0]:
            yield row.fault("the operator has no name")
            return
        for name, (backend, metric), cell in zip(names[1:], columns, row.cells[1:], strict=False):
            value = number(cell)
            if not cell:
                if not _is_never_filled(backend, metric):
                    yield Skipped(pointer(name), reasons.EMPTY_CELL, row.line)
            elif value is None:
                yield row.not_a_number(name, cell)
            else:
                record = Record(
                    Benchmark("operatorbench", "inference", extra_info=dict(info)),
                    Model(row.cells[0], "operator", backend),
                    Metric(metric, [value], extra_info=_ABS if metric == "abs" else None),
                )
                yield LocatedRecord(record, pointer(name), row.line, hints)
        if not all(_is_never_filled(*column) for column in columns[len(row.cells) - 1 :]):
            yield Skipped("", reasons.SHORT_ROW, row.line)

    return each(lines, records)


def _backend_and_metric(column: str, columns: list[str]) -> tuple[str, str]:
    found = _COLUMN.fullmatch(column)
    if found:
        return found["backend"], found["metric"]
    backends = [name.removesuffix(" 50th") for name in columns if name.endswith(" 50th") and "/" not in name]
    return "+".join(backends), column  # `elapsed` is the time of all of them


def _is_never_filled(backend: str, metric: str) -> bool:
    return metric == "abs" and "/" in backend


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    inputs = info_of(record).get("inputs")
    measurement.suite = "operators"
    measurement.backend = measurement.backend or "inductor"
    measurement.knobs = {"inputs": inputs} if isinstance(inputs, str) and inputs else {}
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


FORMAT = Format(
    "operatorbench",
    matches=lambda preview: _is_header(preview.header),
    read=read,
    describe={"operatorbench": describe},
    said_by_name=_said_by_name,
    writer=Writer(
        "operatorbench",
        ("operators",),
        OperatorbenchFiles,
        lambda task: [f"{task.case} with {task.backend} in {task.dtype}, inputs {task.setting('inputs')}"],
        _files,
        _unsupported_reason,
    ),
)
