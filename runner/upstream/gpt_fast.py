"""gpt-fast's benchmark.py: its CSV and, beside it, its JSON lines, for the suites micro and gpt_fast."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.summary import median
from runner.terminal import Finished

Json = Any

# gpt-fast's names, and the columns of the CSV that its benchmark.py writes.
_MICRO_METRICS = ("memory_bandwidth(GB/s)", "flops_utilization")
_MODEL_METRICS = ("token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)")
_COLUMNS = ("name", "metric", "target", "actual", "dtype", "device", "arch", "is_model")


class GptFastFiles:
    """`PATH.csv` and `PATH.json`. A micro-benchmark's row is its mean over the full set of sizes.

    A model with other settings than gpt-fast's has no row: its files cannot say so.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, str]] = []

    def add(self, finished: Finished) -> None:
        rows = _model_rows if finished.task.suite == "gpt_fast" else _micro_rows
        self._rows += rows(finished.records)
        self._path.with_suffix(".csv").write_text(_csv(self._rows))
        lines = "".join(json.dumps(_json(row)) + "\n" for row in self._rows)
        self._path.with_suffix(".json").write_text(lines)


def _micro_rows(records: Sequence[dict[str, Json]]) -> list[dict[str, str]]:
    return [
        _row(record, median(record["metric"]["benchmark_values"]), "False")
        for record in records
        if record["metric"]["name"] in _MICRO_METRICS and "target_value" in record["metric"]
    ]


def _model_rows(records: Sequence[dict[str, Json]]) -> list[dict[str, str]]:
    """The script tells the mean of its five sequences."""
    return [
        _row(record, statistics.fmean(record["metric"]["benchmark_values"]), "True")
        for record in records
        if record["metric"]["name"] in _MODEL_METRICS
        and record["metric"].get("benchmark_values")
        and not record["benchmark"]["extra_info"]["knobs"]
    ]


def _row(record: Mapping[str, Json], value: float, is_model: str) -> dict[str, str]:
    return {
        "name": record["model"]["name"],
        "metric": record["metric"]["name"],
        "target": record["metric"].get("target_value", ""),  # none for a model that gpt-fast has not
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
