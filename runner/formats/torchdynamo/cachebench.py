"""cachebench's JSON: one list with three v3 records for each model.

Source: `benchmarks/dynamo/cachebench.py`.
"""

import json
from pathlib import Path

from runner.formats.format import Format, Writer
from runner.formats.measurement import ParsedMeasurement, info_of, origin_of
from runner.formats.parameters import Parameters
from runner.formats.readers import v3
from runner.schema.records import Json, Record
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskResult

_BENCHMARK = "TorchCache Benchmark"
_METRICS = ("Cold compile time (s)", "Warm compile time (s)", "Speedup (%)")
_DTYPES = {"inference": "bfloat16", "training": "amp"}  # its only ones, which the file does not name


def describe(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    origin = origin_of(record)
    measurement.suite = "cache"
    measurement.dtype = measurement.dtype or _DTYPES.get(measurement.mode, "")
    measurement.backend = measurement.backend or "inductor"
    measurement.knobs = {"origin": origin} if origin else {}
    measurement.dynamic |= bool(info_of(record).get("is_dynamic"))


class CacheFile(Writer):
    """Write `PATH`. Like the script, leave out a model that failed; without models there is no file."""

    name, suites = "cachebench", ("cache",)
    known = ("origin",)

    def places(self, task: TaskSpec) -> list[str]:
        return [f"{task.case} {task.mode}{' with dynamic shapes' if task.dynamic else ''}"]

    def unsupported_reason(self, task: TaskSpec) -> str:
        if task.dtype != _DTYPES[task.mode]:
            return "it knows only bfloat16 inference and amp training"
        return super().unsupported_reason(task)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._records: list[Json] = []

    def add(self, finished: TaskResult) -> list[Path]:
        records = [
            _record(record)
            for record in finished.records
            if record["metric"]["name"] in _METRICS and record["metric"].get("benchmark_values")
        ]
        if not records:
            return []
        self._records += records
        self._path.write_text(json.dumps(self._records))
        return [self._path]


def _record(record: dict[str, Json]) -> Json:
    info, metric, model = record["benchmark"]["extra_info"], record["metric"], record["model"]
    facts = {"is_dynamic": info["dynamic"], "device": info["device"]}
    values = metric["benchmark_values"]
    return {
        "benchmark": {"name": _BENCHMARK, "mode": record["benchmark"]["mode"], "extra_info": facts},
        "model": {"name": model["name"], "backend": model["backend"], "origins": [info["knobs"]["origin"]]},
        "metric": {"name": metric["name"], "type": "OSS model", "benchmark_values": values},
    }


FORMAT = Format(
    "cachebench",
    matches=v3.FORMAT.matches,
    read=v3.read,
    describe={_BENCHMARK: describe},
    writer=CacheFile,
)
