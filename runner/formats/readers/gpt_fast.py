"""gpt-fast's CSV: one row for each benchmark, with the target of a 40 GB A100; beside it JSON lines, which
are v3 records. For the suites micro and gpt_fast.

Source: `benchmarks/gpt_fast/benchmark.py`, output_csv. Rows of several runs stand in one file: it appends.
The first version had the dtype as `mode` and no metric: it measured tokens per second alone. The second had
columns for two metrics, `token_per_sec[target]`, `token_per_sec[actual]`, `memory_bandwidth[actual]`, ….
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.formats.format import Writer, either
from runner.formats.layout import Layout, Located, Quantity, of_row
from runner.formats.measurement import ParsedMeasurement, knobs_of
from runner.formats.readers import v3
from runner.formats.table import TableFile
from runner.schema.metrics import GPT_FAST_SIZES, GPT_FAST_TARGET_ARCH, gpt_fast_target, mean_over
from runner.schema.records import Json, Metric, Record
from runner.schema.statistics import median
from runner.schema.suite import TaskSpec, suite_of
from runner.schema.tasks import TaskResult

_NEEDED = {"name", "metric", "target", "actual"}  # the first versions had these and a percentage
_FIRST = {"name", "mode", "target", "actual", "percentage"}
_OF_METRIC = re.compile(r"(?P<metric>\w+)\[(?P<part>target|actual|pct)\]")
_SECOND_METRICS = {"memory_bandwidth": "memory_bandwidth(GB/s)"}
_MEAN = mean_over(GPT_FAST_SIZES)
_MICRO = {"layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu"}
# gpt-fast's names, and the columns of the CSV that its benchmark.py writes.
_MICRO_METRICS = ("memory_bandwidth(GB/s)", "flops_utilization")
_MODEL_METRICS = ("token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)")
_COLUMNS = ("name", "metric", "target", "actual", "dtype", "device", "arch", "is_model")


def _is_header(columns: list[str]) -> bool:
    others = [column for column in columns if not _OF_METRIC.fullmatch(column)]
    is_second = others == ["name", "mode"] and "token_per_sec[actual]" in columns
    return is_second or _NEEDED.issubset(columns) or set(columns) == _FIRST


def _by_metric(row: dict[str, Any]) -> Iterator[Located]:
    """Yield the cells of each metric of a row under the names that the newest files have."""
    if "metric" in row:
        yield from of_row(row)
        return
    older = {"name": row.get("name"), "dtype": row.get("mode"), "is_model": "true"}
    if "actual" in row:
        yield "", {**row, **older, "metric": "token_per_sec"}
        return
    matches = [match for match in map(_OF_METRIC.fullmatch, row) if match]
    for metric in dict.fromkeys(match["metric"] for match in matches):
        parts = {match["part"]: row[match[0]] for match in matches if match["metric"] == metric}
        yield "", {**older, **parts, "metric": _SECOND_METRICS.get(metric, metric)}


def _complete(measurement: ParsedMeasurement, record: Record) -> None:
    """Complete a row. A micro-benchmark's is a mean over its sizes; targets are a 40 GB A100's."""
    micro = record.model.type == "micro-benchmark" or measurement.case in _MICRO
    measurement.suite = "micro" if micro else "gpt_fast"
    measurement.backend = measurement.backend or "inductor"
    measurement.knobs = {**_MEAN, **knobs_of(record)} if micro else {}
    measurement.target_arch = GPT_FAST_TARGET_ARCH


_LAYOUT = Layout(
    "PyTorch gpt-fast benchmark",
    case="name",
    quantities={"actual": Quantity(target="target")},
    mode=lambda _row: "inference",
    kind=lambda row: "OSS model" if row.get("is_model", "").lower() == "true" else "micro-benchmark",
    origin=lambda _row: "pytorch",
    parameters={"sizes": "sizes"},
    complete=_complete,
)


class GptFastFiles(Writer):
    """Write `PATH.csv` and `PATH.json`. A micro-benchmark's row is its mean over the full set of sizes; a
    column names these where they are not those of gpt-fast's script."""

    name, suites = "gpt-fast", ("micro", "gpt_fast")
    default_file = "gpt_fast_benchmark.csv"

    def places(self, task: TaskSpec) -> list[str]:
        return [f"{task.case} in {task.dtype}"]

    def files(self, _tasks: Sequence[TaskSpec]) -> list[Path]:
        return [self._path, self._path.with_suffix(".json")]

    def unsupported_reason(self, task: TaskSpec) -> str:
        if task.backend != "inductor":
            return "it knows only inductor"
        if task.suite == "micro":
            if not any(gpt_fast_target(task.case, task.dtype, metric) for metric in _MICRO_METRICS):
                return f"it has no {task.case} in {task.dtype}"
            is_mean = any("sizes" in expected.knobs for expected in suite_of(task.suite).expected(task, {}))
            return "" if is_mean else "its row is the mean over all sizes"
        return super().unsupported_reason(task)

    def __init__(self, path: Path) -> None:
        super().__init__(path.with_suffix(".csv"))
        self._file = TableFile(self._path, [*_COLUMNS])

    def add(self, finished: TaskResult) -> list[Path]:
        written: list[Path] = []
        is_model = finished.task.suite == "gpt_fast"
        for record in finished.records:
            values = record["metric"].get("benchmark_values")
            if not values or record["metric"]["name"] not in (_MODEL_METRICS if is_model else _MICRO_METRICS):
                continue
            if is_model or "sizes" in record["benchmark"]["extra_info"]["knobs"]:
                # of a model the mean of the five sequences, as the script has it
                value = statistics.fmean(values) if is_model else median(values)
                row = _row(record, value, str(is_model))
                written = self._file.add(["sizes"] * bool(row["sizes"]), row, [_json(row)])
        return written


def _row(record: Mapping[str, Json], value: float, is_model: str) -> dict[str, str]:
    sizes = record["benchmark"]["extra_info"]["knobs"].get("sizes", "")
    return {
        "name": record["model"]["name"],
        "metric": record["metric"]["name"],
        "target": record["metric"].get("target_value", ""),  # none for what gpt-fast has not, nor for a CPU
        "actual": f"{value:.02f}",
        "dtype": record["benchmark"]["dtype"],
        "device": record["benchmark"]["extra_info"]["device"],
        "arch": record["benchmark"]["extra_info"]["arch"],
        "is_model": is_model,
        "sizes": "" if sizes == _MEAN["sizes"] else sizes,
    }


def _json(row: dict[str, str]) -> dict[str, Json]:
    # its targets of models are numbers, those of micro-benchmarks words
    target = int(row["target"]) if row["is_model"] == "True" and row["target"] else row["target"]
    return _LAYOUT.record(row, Metric(row["metric"], [row["actual"]], target or None)).to_json()


_CSV = _LAYOUT.of_tables("gpt_fast", _is_header, entries=_by_metric, writer=GptFastFiles)
FORMAT = replace(either(v3.FORMAT, _CSV), matches=_CSV.matches)
