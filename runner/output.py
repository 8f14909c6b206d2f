"""Results as a file, in our shape, PyTorch's v3 shape or the outside system's own, and as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runner import upstream
from runner.catalog import BadRequest
from runner.catalog.metrics import metric_info
from runner.summary import median
from runner.terminal import Finished

Json = Any

FORMATS = ("ours", "v3", "upstream")
_COLUMNS = (
    "device_bandwidth_gbps",
    "share_of_ceiling",
    "device_latency_ms",
    "compiled_latency_ms",
    "eager_latency_ms",
    "call_bandwidth_gbps",
    "matmul_tflops",
    "speedup",
    "device_speedup",
)


class Output:
    """A file that grows by one task at a time. `ours` is one line a task, `v3` one line a record.

    `upstream` is what the outside system itself writes (`runner/upstream`). Raises BadRequest where the
    file exists already and is not to be resumed, and for a suite that no outside system has.
    """

    def __init__(self, path: Path, form: str, *, suites: Sequence[str], resume: bool) -> None:
        if path.exists() and not resume:
            raise BadRequest(f"{path} exists; give --resume to go on with it, or another name")
        if resume and form != "ours":
            raise BadRequest("--resume reads what is done from --format ours")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._form = form
        self._writer = upstream.writer(path, suites) if form == "upstream" else None

    def done(self) -> set[str]:
        """Fingerprints of the tasks that succeeded already; a failed one is tried again."""
        if not self._path.exists():
            return set()
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return {line["fingerprint"] for line in lines if line["outcome"]["status"] == "ok"}

    def add(self, finished: Finished) -> None:
        if self._writer:
            self._writer.add(finished)
            return
        with self._path.open("a") as file:
            file.write(_lines(finished.records if self._form == "v3" else [_ours(finished)]))


def records_of(text: str) -> str:
    """A file of `--format ours` as v3 JSON lines; any other text as it is."""
    try:
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return text
    if not all(isinstance(line, dict) and "fingerprint" in line and "records" in line for line in lines):
        return text
    return _lines(record for line in lines for record in line["records"])


def table(finished: Sequence[Finished]) -> str:
    """One row for each case and shape, one column for each metric that was measured, medians."""
    rows = [row for task in finished for row in _table_rows(task)]
    columns = [name for name in _COLUMNS if any(name in row for row in rows)]
    heads = ["case", "dtype", *(_head(name) for name in columns), "status"]
    keys = ["case", "dtype", *columns, "status"]
    cells = [heads, *([row.get(key, "") for key in keys] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(heads))]
    return "\n".join(_line(row, widths) for row in cells)


def _head(metric: str) -> str:
    unit = metric_info(metric).unit
    name = metric.removesuffix("_gbps").removesuffix("_ms").removesuffix("_tflops")
    return f"{name} {unit}" if unit not in {"", "ratio"} else name


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    texts = [
        cell.ljust(width) if index < 2 or index == len(cells) - 1 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def _table_rows(finished: Finished) -> list[dict[str, str]]:
    task, outcome = finished.task, finished.outcome
    rows: dict[str, dict[str, str]] = {}
    for record in finished.records:
        knobs = record["benchmark"]["extra_info"]["knobs"]
        text = ",".join(f"{name}={value}" for name, value in knobs.items())
        case = f"{task.case}[{text}]" if text else task.case
        metric = record["metric"]
        said = metric["extra_info"]
        row = rows.setdefault(text, {"case": case, "dtype": task.dtype, "status": ""})
        row["status"] = " ".join(filter(None, (said["status"], said.get("code"))))
        values = metric.get("benchmark_values")
        if values:
            row[metric["name"]] = f"{median(values):.{metric_info(metric['name']).precision}f}"
    if outcome.status != "ok" and not any(row["status"] != "ok" for row in rows.values()):
        status = " ".join(filter(None, (outcome.status, outcome.code)))
        rows[""] = {"case": task.case, "dtype": task.dtype, "status": status}
    return list(rows.values())


def _lines(values: Iterable[Json]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def _ours(finished: Finished) -> dict[str, Json]:
    outcome = finished.outcome
    return {
        "fingerprint": finished.task.fingerprint(),
        "task": finished.task.to_json(),
        "outcome": {
            "status": outcome.status,
            "code": outcome.code,
            "reason": outcome.reason,
            "seconds": outcome.seconds,
        },
        "records": finished.records,
    }
