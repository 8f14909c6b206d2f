"""cachebench's JSON: one list with three records for each model, for the suite cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.terminal import Finished

Json = Any

_METRICS = ("Cold compile time (s)", "Warm compile time (s)", "Speedup (%)")
_DTYPES = {"training": "amp", "inference": "bfloat16"}  # its only ones, which the file does not name


class CacheFile:
    """`PATH`. As there, a model that failed is not in it, and no model leaves no file.

    Nor is one with another dtype or other settings than cachebench's: its file cannot say so.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[Json] = []

    def add(self, finished: Finished) -> None:
        self._records += [
            _record(record)
            for record in finished.records
            if record["metric"]["name"] in _METRICS
            and record["metric"].get("benchmark_values")
            and record["benchmark"]["dtype"] == _DTYPES[record["benchmark"]["mode"]]
            and set(record["benchmark"]["extra_info"]["knobs"]) == {"origin"}
        ]
        if self._records:
            self._path.write_text(json.dumps(self._records))


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
