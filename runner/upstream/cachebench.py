"""cachebench's JSON: one list with three records for each model, for the suite cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.catalog import TaskSpec
from runner.task_result import TaskResult

Json = Any

_METRICS = ("Cold compile time (s)", "Warm compile time (s)", "Speedup (%)")
_DTYPES = {"training": "amp", "inference": "bfloat16"}  # its only ones, which the file does not name


def no_place(task: TaskSpec) -> str:
    """Why cachebench's file cannot hold this task, '' where it can."""
    if task.dtype != _DTYPES[task.mode]:
        return "it knows only bfloat16 inference and amp training"
    unsaid = sorted(set(task.identity()) - {"origin"})
    return f"it cannot say {', '.join(unsaid)}" if unsaid else ""


def places(task: TaskSpec) -> list[str]:
    dynamic = " with dynamic shapes" if task.dynamic else ""
    return [f"{task.case} {task.mode}{dynamic}"]


def files(path: Path, _tasks: Sequence[TaskSpec]) -> list[Path]:
    return [path]


class CacheFile:
    """`PATH`. As there, a model that failed is not in it, and no model leaves no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[Json] = []

    def add(self, finished: TaskResult) -> list[Path]:
        records = [
            _record(record)
            for record in finished.records
            if record["metric"]["name"] in _METRICS and record["metric"].get("benchmark_values")
        ]
        if not records or no_place(finished.task):
            return []
        self._records += records
        self._path.write_text(json.dumps(self._records))
        return [self._path]


def _record(record: dict[str, Json]) -> Json:
    info = record["benchmark"]["extra_info"]
    return {
        "benchmark": {
            "name": "TorchCache Benchmark",
            "mode": record["benchmark"]["mode"],
            "extra_info": {"is_dynamic": info["dynamic"], "device": info["device"]},
        },
        "model": {
            "name": record["model"]["name"],
            "backend": record["model"]["backend"],
            "origins": [info["knobs"]["origin"]],
        },
        "metric": {
            "name": record["metric"]["name"],
            "type": "OSS model",
            "benchmark_values": record["metric"]["benchmark_values"],
        },
    }
