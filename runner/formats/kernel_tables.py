"""CSV files of kernels: Liger-Kernel's, BackendBench's, and those of `triton.testing.perf_report`.

Sources: Liger-Kernel `benchmark/scripts/utils.py`, BackendBench `BackendBench/output.py`, Triton
`python/triton/testing.py`. A perf_report has a column for each argument, then one for each provider, and only
the newer ones name the unit; its file is called after the plot.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from runner.formats import reasons
from runner.formats.layout import VALUE, Layout, Located, Quantity, Reading
from runner.formats.scalars import base_name, number, numbers_in, text
from runner.formats.table import pointer
from runner.schema.metrics import canonical_unit

_MODES = {"forward": "inference", "no-grad-forward": "inference", "backward": "training", "full": "training"}
_LIGER = {"speed": "latency_ms", "memory": "memory"}
_ARGUMENT = re.compile(
    r"[A-Z][A-Z0-9_]{0,9}|size|seq_?len(gth)?|n_elements|num_tokens|hidden_size|batch(_size)?"
)
_PROVIDER = re.compile(r"triton|torch|cu(blas|dnn|tlass)|liger|hugging ?face|naive|flash", re.IGNORECASE)
_WITH_UNIT = re.compile(r"(?P<provider>.+?) \((?P<unit>[^()]+)\)")
_OF_UNIT = {"ms": "latency_ms", "GB/s": "gbps", "TFLOP/s": "tflops"}  # metrics
_NO_NUMBER = {"nan", "inf", "-inf", "None"}


def _plain(cell: str) -> int | str:
    """Return a whole number that was written with a decimal point as such."""
    found = number(cell)
    return int(found) if found is not None and found.is_integer() else cell


def _of_liger(row: dict[str, Any]) -> Iterator[Located]:
    """Yield the median, and the 20 % and 80 % quantiles, of a kernel."""
    config = json.loads(row.get("extra_benchmark_config_str") or "{}")
    dtype = text(config.pop("dtype", "")).removeprefix("torch.")
    knobs = {name: said for name, said in config.items() if isinstance(said, str | int | float)}
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


def _is_perf_report(columns: list[str]) -> bool:
    arguments, providers = _split(columns)
    is_named = any(_WITH_UNIT.fullmatch(name) or _PROVIDER.search(name) for name in providers)
    return bool(arguments) and is_named


def _split(columns: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns of the arguments, and those of the providers behind them."""
    count = next((place for place, name in enumerate(columns) if not _ARGUMENT.fullmatch(name)), len(columns))
    return columns[:count], columns[count:]


def _of_perf_report(row: dict[str, Any]) -> Iterator[Located]:
    """Yield the value of each provider."""
    arguments, providers = _split([*row])
    knobs = {name: _plain(row[name]) for name in arguments}
    for name in providers:
        found = _WITH_UNIT.fullmatch(name)
        unit = canonical_unit(found["unit"]) if found else ""
        said = {
            "backend": found["provider"] if found else name,
            "metric": _OF_UNIT.get(unit, unit or "value"),
        }
        yield pointer(name), {"knobs": knobs, **said, "unit": unit, VALUE: row[name]}


PERF_REPORT = Layout(
    "triton.testing.perf_report",
    case=lambda entry: entry.get("plot") or "perf_report",
    quantities={VALUE: Quantity(read=_if_any)},
    suite="perf_report",
    by_name=lambda filename: {"plot": base_name(filename).removesuffix(".csv")},
).of_tables("perf_report", _is_perf_report, entries=_of_perf_report)
FORMATS = (LIGER, BACKENDBENCH, PERF_REPORT)
