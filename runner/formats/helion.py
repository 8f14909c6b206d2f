"""Helion's benchmarks: v3 records whose `benchmark_values` are one number for each shape (`v3.read`).

The data of its dashboard, `dashboard-data.json`, have the same values of many commits.

Source: `benchmarks/run.py`, `run_tpu.py` and `run_linattn.py`. `shape` lists the shapes in the same order,
and `extra_info.device` is the GPU's name. A metric is called `<kernel>_<metric>`, as triton_accuracy. 0
stands for a shape that failed, and in an accuracy for outputs that differ from the baseline's.
"""

import re
from collections.abc import Iterator
from typing import Any

from runner.formats import v3
from runner.formats.errors import WrongRecord
from runner.formats.format import Format, Preview
from runner.formats.layout import VALUE, Layout, Located
from runner.formats.measurement import ParsedMeasurement, info_of, knobs_of
from runner.formats.parameters import Parameters
from runner.formats.scalars import shortened, text
from runner.schema.records import Record

_BENCHMARKS = ("Helion Benchmark", "Helion TPU Benchmark", "Helion Linear-Attention Benchmark")
_KERNEL = re.compile(r"(?P<kernel>\w+?)_(?:speedup|accuracy|latency|latency_ms|tflops|gbps|compile_time_s)")


def _matches(preview: Preview) -> bool:
    value = preview.first_value if preview.names("benchmark", "benchmark_values", "shape") else None
    value = value[0] if isinstance(value, list) and value else value
    benchmark = value.get("benchmark") if isinstance(value, dict) else None
    return isinstance(benchmark, dict) and benchmark.get("name") in _BENCHMARKS


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    shapes, values = record.shape, (record.metric and record.metric.benchmark_values) or []
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
        for number, run in enumerate(kernel["history"]):
            cells = dict(run["per_shape"])
            shapes = cells.pop("shapes")
            for metric, values in cells.items():
                for place, (shape, cell) in enumerate(zip(shapes, values, strict=False)):
                    at = f"/summary/{index}/history/{number}/per_shape/{metric}/{place}"
                    yield at, {**run, **names, "metric": metric, "knobs": {"shape": shape}, VALUE: cell}


DASHBOARD = Layout(
    _BENCHMARKS[0],
    commit="full_sha",
    time="date",
    repo=lambda _run: "pytorch/helion",
    more=lambda run: {"workflow_id": run.get("run_id")},
).of_json(
    "helion_dashboard", {"generated_at": str, "latest_run": dict, "runs": list}, _of_dashboard, describe={}
)
FORMAT = Format("helion", matches=_matches, read=v3.read, describe=dict.fromkeys(_BENCHMARKS, describe))
FORMATS = (DASHBOARD, FORMAT)
