"""operatorbench's CSV for the suite operators: a row for each operator, with a column for each backend.

Its own header has a column `a/b abs` that no row fills; here header and rows agree. On a CPU its mean times
are seconds, and so they are here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.catalog import TaskSpec
from runner.summary import median, quantiles
from runner.terminal import Finished

Json = Any

_QUANTILES = ("20th", "50th", "80th")
_BACKENDS = ("inductor", "autotune")
_PLAIN = {"inputs"}  # knobs that the file's name says
_Row = dict[tuple[str, str], float]  # (backend, metric) → value


def no_place(task: TaskSpec) -> str:
    """Why operatorbench's file cannot hold this task, '' where it can."""
    if task.backend not in _BACKENDS:
        return f"it knows only {' and '.join(_BACKENDS)}"
    unsaid = sorted(set(task.identity()) - _PLAIN)
    return f"it cannot say {', '.join(unsaid)}" if unsaid else ""


class OperatorbenchFiles:
    """`operatorbench_<inputs>_<dtype>.csv` in the folder PATH, or in its folder where PATH names a file."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent if path.suffix else path
        self._rows: dict[tuple[str, str], dict[str, _Row]] = {}
        self._shapes: dict[tuple[str, str], dict[str, dict[str, dict[str, float]]]] = {}

    def add(self, finished: Finished) -> list[Path]:
        if no_place(finished.task):
            return []
        places = {place for record in finished.records if (place := self._take(record))}
        return [self._write(*place) for place in sorted(places)]

    def _write(self, inputs: str, dtype: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"operatorbench_{inputs}_{dtype}.csv"
        path.write_text(_csv(self._rows[inputs, dtype], self._shapes.get((inputs, dtype), {})))
        return path

    def _take(self, record: dict[str, Json]) -> tuple[str, str] | None:
        """The file that it gave a value to, if any: (inputs, dtype)."""
        info, metric = record["benchmark"]["extra_info"], record["metric"]
        knobs, values = info["knobs"], metric.get("benchmark_values")
        place = str(knobs.get("inputs")), record["benchmark"]["dtype"]
        operator, backend = record["model"]["name"], record["model"]["backend"]
        if not values:
            return None
        if set(knobs) == _PLAIN and metric["name"] in (*_QUANTILES, "abs", "elapsed"):
            in_seconds = metric["name"] == "abs" and info["device"] == "cpu"
            value = median(values) / 1000 if in_seconds else median(values)
            self._rows.setdefault(place, {}).setdefault(operator, {})[backend, metric["name"]] = value
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
        cells += [sum(elapsed), *(row.get((name, "abs")) for name in ["eager", *backends])]
        writer.writerow([operator, *("" if cell is None else repr(cell) for cell in cells)])
    return text.getvalue()


def _ratios(shapes: Mapping[str, Mapping[str, float]], backends: list[str]) -> list[float | None]:
    """Quantiles of one backend's time by the other's, over the shapes that both have."""
    first, second = backends
    ratios = [times[first] / times[second] for times in shapes.values() if len(times) > 1]
    return [*quantiles(ratios)] if ratios else [None, None, None]
