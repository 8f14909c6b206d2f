"""gpt-fast's benchmark.py: its CSV and, beside it, its JSON lines, for the suites micro and gpt_fast."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from runner.catalog import TaskSpec
from runner.catalog.suites.micro import SIZES
from runner.catalog.targets import gpt_fast_target
from runner.summary import median
from runner.task_result import TaskResult

Json = Any

# gpt-fast's names, and the columns of the CSV that its benchmark.py writes.
_MICRO_METRICS = ("memory_bandwidth(GB/s)", "flops_utilization")
_MODEL_METRICS = ("token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)")
_COLUMNS = ("name", "metric", "target", "actual", "dtype", "device", "arch", "is_model")


def no_place(task: TaskSpec) -> str:
    """Why gpt-fast's files cannot hold this task, '' where they can."""
    if task.backend != "inductor":
        return "it knows only inductor"
    if task.suite == "micro":
        return _no_place_of_micro(task)
    unsaid = sorted(task.identity())
    return f"it cannot say {', '.join(unsaid)}" if unsaid else ""


def _no_place_of_micro(task: TaskSpec) -> str:
    if gpt_fast_target(task.case, task.dtype) is None:
        return f"it has no {task.case} in {task.dtype}"
    sizes = cast("Sequence[int] | None", task.knobs.get("D"))
    in_part = sizes and set(sizes) != set(SIZES[task.device])
    return "its row is the mean over all sizes" if in_part else ""


def places(task: TaskSpec) -> list[str]:
    return [f"{task.case} in {task.dtype}"]


def files(path: Path, _tasks: Sequence[TaskSpec]) -> list[Path]:
    """The CSV and the JSON lines."""
    return [path.with_suffix(".csv"), path.with_suffix(".json")]


class GptFastFiles:
    """`PATH.csv` and `PATH.json`. A micro-benchmark's row is its mean over the full set of sizes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, str]] = []

    def add(self, finished: TaskResult) -> list[Path]:
        rows_of = _model_rows if finished.task.suite == "gpt_fast" else _micro_rows
        rows = rows_of(finished.records)
        if not rows or no_place(finished.task):
            return []
        self._rows += rows
        table, lines = files(self._path, [finished.task])
        table.write_text(_csv(self._rows))
        lines.write_text("".join(json.dumps(_json(row)) + "\n" for row in self._rows))
        return [table, lines]


def _micro_rows(records: Sequence[dict[str, Json]]) -> list[dict[str, str]]:
    return [
        _row(record, median(record["metric"]["benchmark_values"]), "False")
        for record in records
        if record["metric"]["name"] in _MICRO_METRICS
        and record["metric"].get("benchmark_values")
        and record["benchmark"]["extra_info"]["knobs"] == {"D": "mean"}
    ]


def _model_rows(records: Sequence[dict[str, Json]]) -> list[dict[str, str]]:
    """The script tells the mean of its five sequences."""
    return [
        _row(record, statistics.fmean(record["metric"]["benchmark_values"]), "True")
        for record in records
        if record["metric"]["name"] in _MODEL_METRICS and record["metric"].get("benchmark_values")
    ]


def _row(record: Mapping[str, Json], value: float, is_model: str) -> dict[str, str]:
    return {
        "name": record["model"]["name"],
        "metric": record["metric"]["name"],
        "target": record["metric"].get("target_value", ""),  # none for what gpt-fast has not, nor for a CPU
        "actual": f"{value:.02f}",
        "dtype": record["benchmark"]["dtype"],
        "device": record["benchmark"]["extra_info"]["device"],
        "arch": record["benchmark"]["extra_info"]["arch"],
        "is_model": is_model,
    }


def _csv(rows: Sequence[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _json(row: dict[str, str]) -> dict[str, Json]:
    is_model = row["is_model"] == "True"
    # its targets of models are numbers, those of micro-benchmarks words
    target: Json = int(row["target"]) if is_model and row["target"] else row["target"]
    return {
        "benchmark": {
            "name": "PyTorch gpt-fast benchmark",
            "mode": "inference",
            "dtype": row["dtype"],
            "extra_info": {"device": row["device"], "arch": row["arch"]},
        },
        "model": {
            "name": row["name"],
            "type": "OSS model" if is_model else "micro-benchmark",
            "origins": ["pytorch"],
        },
        "metric": {
            "name": row["metric"],
            "benchmark_values": [row["actual"]],
            **({"target_value": target} if target != "" else {}),
        },
    }
