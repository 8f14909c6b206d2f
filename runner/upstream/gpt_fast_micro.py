"""gpt-fast's benchmark.py: its CSV and, beside it, its JSON lines, for the suite micro."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.summary import median
from runner.terminal import Finished

Json = Any

# gpt-fast's two names, and the columns of the CSV that its benchmark.py writes.
_METRICS = ("memory_bandwidth(GB/s)", "flops_utilization")
_COLUMNS = ("name", "metric", "target", "actual", "dtype", "device", "arch", "is_model")


class MicroFiles:
    """`PATH.csv` and `PATH.json`: only means over the full set of sizes have a row, as there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, str]] = []

    def add(self, finished: Finished) -> None:
        self._rows += _rows(finished.records)
        self._path.with_suffix(".csv").write_text(_csv(self._rows))
        lines = "".join(json.dumps(_json(row)) + "\n" for row in self._rows)
        self._path.with_suffix(".json").write_text(lines)


def _rows(records: Sequence[dict[str, Json]]) -> list[dict[str, str]]:
    """Rows of its CSV: only means over the full set of sizes have one."""
    return [
        {
            "name": record["model"]["name"],
            "metric": record["metric"]["name"],
            "target": record["metric"]["target_value"],
            "actual": f"{median(record['metric']['benchmark_values']):.02f}",
            "dtype": record["benchmark"]["dtype"],
            "device": record["benchmark"]["extra_info"]["device"],
            "arch": record["benchmark"]["extra_info"]["arch"],
            "is_model": "False",
        }
        for record in records
        if record["metric"]["name"] in _METRICS and "target_value" in record["metric"]
    ]


def _csv(rows: Sequence[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _json(row: dict[str, str]) -> dict[str, Json]:
    return {
        "benchmark": {
            "name": "PyTorch gpt-fast benchmark",
            "mode": "inference",
            "dtype": row["dtype"],
            "extra_info": {"device": row["device"], "arch": row["arch"]},
        },
        "model": {"name": row["name"], "type": "micro-benchmark", "origins": ["pytorch"]},
        "metric": {
            "name": row["metric"],
            "benchmark_values": [row["actual"]],
            "target_value": row["target"],
        },
    }
