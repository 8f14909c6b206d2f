"""Benchmarks of kernels: Helion, KernelBench, Liger-Kernel, BackendBench and `triton.testing.perf_report`.

Helion (`benchmarks/run.py`, `run_tpu.py`, `run_linattn.py`) writes v3 records whose `benchmark_values` are
one number for each shape (`v3.read`). `shape` lists the shapes in the same order, and `extra_info.device` is
the GPU's name. A metric is called `<kernel>_<metric>`, as triton_accuracy. 0 stands for a shape that failed,
and in an accuracy for outputs that differ from the baseline's. The data of its dashboard,
`dashboard-data.json`, have the same values of many commits.

KernelBench's baselines (`scripts/generate_baseline_time.py`) have mean, spread, least and largest time in ms
of each level and problem. The backend stands in the file's name: `baseline_time_torch.json` is eager,
`baseline_time_torch_compile_inductor_default.json` compiled; its first files left `inductor` out.

The others are CSV. Sources: Liger-Kernel `benchmark/scripts/utils.py`, BackendBench `BackendBench/output.py`,
Triton `python/triton/testing.py`. A perf_report has a column for each argument, then one for each provider,
and only the newer ones name the unit; its file is called after the plot.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.formats import reasons
from runner.formats.errors import WrongRecord
from runner.formats.format import Format, Preview
from runner.formats.layout import VALUE, Layout, Located, Quantity, Reading
from runner.formats.measurement import ParsedMeasurement, info_of, knobs_of, warn_of_backend
from runner.formats.parameters import Parameters
from runner.formats.readers import v3
from runner.formats.scalars import base_name, groups_in_name, number, numbers_in, shortened, text
from runner.formats.table import pointer
from runner.schema.metrics import canonical_unit
from runner.schema.records import Record

_HELION = ("Helion Benchmark", "Helion TPU Benchmark", "Helion Linear-Attention Benchmark")
_KERNEL = re.compile(r"(?P<kernel>\w+?)_(?:speedup|accuracy|latency|latency_ms|tflops|gbps|compile_time_s)")
_LEVEL = re.compile(r"level\w{1,20}")
_BASELINE_FILE = re.compile(r"baseline_time_torch(?P<compiled>_compile)?(?P<rest>[\w-]*)")
_COMPILE_MODE = re.compile(r"_(reduce-overhead|max-autotune(?:-no-cudagraphs)?)(?![\w-])")
_TIMES = {
    "mean": Quantity("latency_ms"),
    "min": Quantity("latency_min_ms"),
    "max": Quantity("latency_max_ms"),
    "std": Quantity("latency_std_ms"),
}
_MODES = {"forward": "inference", "no-grad-forward": "inference", "backward": "training", "full": "training"}
_LIGER = {"speed": "latency_ms", "memory": "memory"}
_ARGUMENT = re.compile(
    r"[A-Z][A-Z0-9_]{0,9}|size|seq_?len(gth)?|n_elements|num_tokens|hidden_size|batch(_size)?"
)
_PROVIDER = re.compile(r"triton|torch|cu(blas|dnn|tlass)|liger|hugging ?face|naive|flash", re.IGNORECASE)
_WITH_UNIT = re.compile(r"(?P<provider>.+?) \((?P<unit>[^()]+)\)")
_OF_UNIT = {"ms": "latency_ms", "GB/s": "gbps", "TFLOP/s": "tflops"}  # metrics
_NO_NUMBER = {"nan", "inf", "-inf", "None"}


def _is_helion(preview: Preview) -> bool:
    value = preview.first_value if preview.names("benchmark", "benchmark_values", "shape") else None
    benchmark = value.get("benchmark") if isinstance(value, dict) else None
    return isinstance(benchmark, dict) and benchmark.get("name") in _HELION


def _describe_helion(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    shapes, values = record.shape, record.metric.benchmark_values or []
    if isinstance(shapes, list) and shapes and len(shapes) != len(values):
        detail = f"there are {len(values)} values for {len(shapes)} shapes"
        raise WrongRecord("/metric/benchmark_values", detail)
    info, name = info_of(record), measurement.metric
    of_metric = _KERNEL.fullmatch(name)
    measurement.suite = "helion"
    measurement.backend = of_metric["kernel"] if of_metric else "helion"
    shape = text(info.get("shape")) or text(knobs_of(record).get("shape"))
    measurement.knobs = {"shape": shortened(shape)} if shape else {}
    if measurement.backend == "helion" and text(info.get("backend")) not in {"", "triton"}:
        measurement.knobs["helion_backend"] = info["backend"]
    if not name.endswith("accuracy"):
        measurement.samples = [max(sample, 0.0) for sample in measurement.samples]  # -1: it failed
        measurement.zero_is("failed")
    elif measurement.samples:
        measurement.status = "ok" if all(measurement.samples) else "wrong"
        if name == "accuracy":  # elsewhere a word
            measurement.code, measurement.samples = f"{measurement.samples[0]:g}", []


def _of_dashboard(value: dict[str, Any]) -> Iterator[Located]:
    """Yield each value of each kernel, commit and shape."""
    for index, kernel in enumerate(value["summary"]):
        names = {"case": kernel["kernel"], "device": kernel["platform"], "arch": kernel["platform_short"]}
        for position, run in enumerate(kernel["history"]):
            cells = dict(run["per_shape"])
            shapes = cells.pop("shapes")
            for metric, values in cells.items():
                for index_of_shape, (shape, cell) in enumerate(zip(shapes, values, strict=False)):
                    at = f"/summary/{index}/history/{position}/per_shape/{metric}/{index_of_shape}"
                    yield at, {**run, **names, "metric": metric, "knobs": {"shape": shape}, VALUE: cell}


HELION_DASHBOARD = Layout(
    _HELION[0],
    commit="full_sha",
    time="date",
    repo=lambda _run: "pytorch/helion",
    more=lambda run: {"workflow_id": run.get("run_id")},
).of_json(
    "helion_dashboard", {"generated_at": str, "latest_run": dict, "runs": list}, _of_dashboard, describe={}
)
HELION = Format("helion", _is_helion, v3.read, describe=dict.fromkeys(_HELION, _describe_helion))


def _backend_by_name(filename: str) -> Mapping[str, str]:
    match = _BASELINE_FILE.search(base_name(filename))
    if not match:
        return {}
    if not match["compiled"]:
        return {"backend": "eager"}
    backend = "cudagraphs" if match["rest"].startswith("_cudagraphs") else "inductor"
    mode = _COMPILE_MODE.search(match["rest"])
    return {"backend": f"{backend}_{mode[1].replace('-', '_')}" if mode else backend}


def _is_baseline(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(_LEVEL.fullmatch(level) and isinstance(cases, dict) for level, cases in value.items())


def _of_levels(levels: dict[str, dict[str, Any]]) -> Iterator[Located]:
    if not _is_baseline(levels):
        yield "", "an object without levels: level1, …"
        return
    for level, problems in levels.items():
        for name, times in problems.items():
            entry = times
            if isinstance(times, dict):
                case = f"{level}/{base_name(name).removesuffix('.py')}"
                entry = {**dict.fromkeys(_TIMES), **times, "case": case}
            yield f"/{level}{pointer(name)}", entry


KERNELBENCH = Layout(
    "KernelBench",
    quantities=_TIMES,
    suite="kernelbench",
    mode=lambda _times: "inference",
    complete=warn_of_backend,
    device=lambda times: text(times.get("device")).split(":")[0],
    arch="hardware",
    by_name=_backend_by_name,
).of_json(
    "kernelbench",
    {},
    _of_levels,
    matches=lambda preview: preview.names("mean", "num_trials") and _is_baseline(preview.first_value),
)


def _plain(cell: str) -> int | str:
    """Return a whole number that was written with a decimal point as such."""
    value = number(cell)
    return int(value) if value is not None and value.is_integer() else cell


def _of_liger(row: dict[str, Any]) -> Iterator[Located]:
    """Yield the median, and the 20 % and 80 % quantiles, of a kernel."""
    config = json.loads(row.get("extra_benchmark_config_str") or "{}")
    dtype = text(config.pop("dtype", "")).removeprefix("torch.")
    knobs = {name: value for name, value in config.items() if isinstance(value, str | int | float)}
    knobs |= {text(row["x_name"]): _plain(row["x_value"]), "operation": row["kernel_operation_mode"]}
    metric = _LIGER.get(text(row["metric_name"]), text(row["metric_name"]))
    shared = {**row, "knobs": knobs, "dtype": dtype, "unit": row["metric_unit"], "direction": "down"}
    for column, suffix in (("y_value_50", ""), ("y_value_20", "_20th"), ("y_value_80", "_80th")):
        if column in row:
            yield pointer(column), {**shared, "metric": metric + suffix, VALUE: row[column]}


LIGER = Layout(
    "Liger-Kernel",
    case="kernel_name",
    suite="liger",
    mode=lambda row: _MODES.get(row["kernel_operation_mode"], ""),
    backend="kernel_provider",
    arch="gpu_name",
    time="timestamp",
    more=lambda row: {"dependencies": {"liger_kernel": {"version": row.get("liger_version")}}},
).of_tables(
    "liger",
    {"kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name",
     "x_value", "y_value_50"}.issubset,
    entries=_of_liger,
    whole_rows=True,
)  # fmt: skip


def _if_any(cell: Any, metric: str) -> Reading:
    return reasons.NO_VALUES if str(cell) in _NO_NUMBER else numbers_in(cell)


BACKENDBENCH = Layout(
    "BackendBench",
    case="operator",
    quantities={
        "correctness_rate": Quantity("correctness_rate", "ratio", "up"),
        "avg_speedup": Quantity("avg_speedup", "x", "up"),
        "geomean_speedup": Quantity("geomean_speedup", "x", "up"),
        "max_absolute_error": Quantity("max_absolute_error", "", "down", read=_if_any),
        "max_relative_error": Quantity("max_relative_error", "", "down", read=_if_any),
    },
    suite="backendbench",
    zero=dict.fromkeys(("avg_speedup", "geomean_speedup"), "not_run"),  # of a run without timing
).of_tables("backendbench", {"operator", "total_tests", "correctness_rate", "geomean_speedup"}.issubset)


def _split(columns: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns of the arguments, and those of the providers behind them."""
    count = next((index for index, name in enumerate(columns) if not _ARGUMENT.fullmatch(name)), len(columns))
    return columns[:count], columns[count:]


def _is_perf_report(columns: list[str]) -> bool:
    arguments, providers = _split(columns)
    is_named = any(_WITH_UNIT.fullmatch(name) or _PROVIDER.search(name) for name in providers)
    return bool(arguments) and is_named


def _of_perf_report(row: dict[str, Any]) -> Iterator[Located]:
    """Yield the value of each provider."""
    arguments, providers = _split([*row])
    knobs = {name: _plain(row[name]) for name in arguments}
    for name in providers:
        match = _WITH_UNIT.fullmatch(name)
        unit = canonical_unit(match["unit"]) if match else ""
        shared = {"knobs": knobs, "backend": match["provider"] if match else name, "unit": unit}
        yield pointer(name), {**shared, "metric": _OF_UNIT.get(unit, unit or "value"), VALUE: row[name]}


PERF_REPORT = Layout(
    "triton.testing.perf_report",
    case=lambda entry: entry.get("plot") or "perf_report",
    quantities={VALUE: Quantity(read=_if_any)},
    suite="perf_report",
    by_name=groups_in_name(r"(?P<plot>.+?)(?:\.csv)?"),
).of_tables("perf_report", _is_perf_report, entries=_of_perf_report)
FORMATS = (HELION_DASHBOARD, HELION, KERNELBENCH, LIGER, BACKENDBENCH, PERF_REPORT)
