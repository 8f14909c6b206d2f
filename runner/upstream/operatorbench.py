"""operatorbench's CSV for the suite operators: a row for each operator, with a column for each backend.

Its own header has a column `a/b abs` that no row fills; here header and rows agree. On a CPU its mean times
are seconds, and so they are here.

There all backends of an operator are measured in one go, with eager once; here each is a task with an eager
of its own. So `eager abs` is that of the first backend that has one, inductor before autotune, and each
backend's quantiles are over its own eager. `elapsed`, there the seconds that an operator took with all its
backends, compiling too, is what it took here: the sum over its tasks, each with eager and all clocks, but
without calls that failed.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.catalog import TaskSpec
from runner.catalog.suites.operators import FREQUENT, TWENTY, told_inputs
from runner.summary import median, quantiles
from runner.task_result import TaskResult

Json = Any

_QUANTILES = ("20th", "50th", "80th")
_BACKENDS = ("inductor", "autotune")
_PLAIN = {"inputs"}  # knobs that the file's name says
_EAGER_MEAN = "eager abs"
_Row = dict[tuple[str, str], float]  # (backend of the task, metric or eager's mean) → value


def no_place(task: TaskSpec) -> str:
    """Why operatorbench's file cannot hold this task, '' where it can."""
    if task.backend not in _BACKENDS:
        return f"it knows only {' and '.join(_BACKENDS)}"
    unsaid = sorted(set(task.identity()) - _PLAIN)
    return f"it cannot say {', '.join(unsaid)}" if unsaid else ""


def places(task: TaskSpec) -> list[str]:
    """An operator that is measured by itself and among the frequent ones has one row."""
    said = f"with {task.backend} in {task.dtype}, inputs {task.setting('inputs')}"
    return [f"{operator} {said}" for operator in (TWENTY if task.case == FREQUENT else [task.case])]


def files(path: Path, tasks: Sequence[TaskSpec]) -> set[Path]:
    """Named by the records' inputs, in an environment as this one."""
    return {_file(path, told_inputs(str(task.setting("inputs")), os.environ), task.dtype) for task in tasks}


def _file(path: Path, inputs: str, dtype: str) -> Path:
    folder = path.parent if path.suffix else path
    return folder / f"operatorbench_{inputs}_{dtype}.csv"


class OperatorbenchFiles:
    """`operatorbench_<inputs>_<dtype>.csv` in the folder PATH, or in its folder where PATH names a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[str, str], dict[str, _Row]] = {}
        self._shapes: dict[tuple[str, str], dict[str, dict[str, dict[str, float]]]] = {}

    def add(self, finished: TaskResult) -> list[Path]:
        if no_place(finished.task):
            return []
        taken = {place for record in finished.records if (place := self._take(record, finished.task.backend))}
        return [self._write(*place) for place in sorted(taken)]

    def _write(self, inputs: str, dtype: str) -> Path:
        path = _file(self._path, inputs, dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_csv(self._rows[inputs, dtype], self._shapes.get((inputs, dtype), {})))
        return path

    def _take(self, record: dict[str, Json], backend: str) -> tuple[str, str] | None:
        """The file that it gave a value to, if any: (inputs, dtype). `backend` is its task's."""
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [f"{name} {quantile}" for name in names for quantile in _QUANTILES]
    writer.writerow(["operator", *heads, "elapsed", *(f"{name} abs" for name in ["eager", *backends])])
    for operator, row in rows.items():
        cells = [row.get((backend, quantile)) for backend in backends for quantile in _QUANTILES]
        cells += _ratios(shapes.get(operator, {}), backends) if both else []
        elapsed = [row[backend, "elapsed"] for backend in backends if (backend, "elapsed") in row]
        eager = next(
            (row[backend, _EAGER_MEAN] for backend in backends if (backend, _EAGER_MEAN) in row), None
        )
        cells += [sum(elapsed), eager, *(row.get((backend, "abs")) for backend in backends)]
        writer.writerow([operator, *("" if cell is None else repr(cell) for cell in cells)])
    return text.getvalue()


def _ratios(shapes: Mapping[str, Mapping[str, float]], backends: list[str]) -> list[float | None]:
    """Quantiles of one backend's time by the other's, over the shapes that both have."""
    first, second = backends
    ratios = [times[first] / times[second] for times in shapes.values() if len(times) > 1]
    return [*quantiles(ratios)] if ratios else [None, None, None]
