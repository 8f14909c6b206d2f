"""Helion's benchmarks: v3 records whose `benchmark_values` are one number for each shape (`v3.read`).

Source: `benchmarks/run.py`, `run_tpu.py` and `run_linattn.py`. `shape` lists the shapes in the same order,
and `extra_info.device` is the GPU's name. A metric is called `<kernel>_<metric>`, as triton_accuracy. 0
stands for a shape that failed, and in an accuracy for outputs that differ from the baseline's.
"""

from __future__ import annotations

import re

from runner.formats import v3
from runner.formats.errors import WrongRecord
from runner.formats.format import Format, Preview
from runner.formats.measurement import ParsedMeasurement, info_of
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
    measurement.knobs = {"shape": shortened(info["shape"])} if text(info.get("shape")) else {}
    if measurement.backend == "helion" and text(info.get("backend")) not in {"", "triton"}:
        measurement.knobs["helion_backend"] = info["backend"]
    if not name.endswith("accuracy"):
        measurement.samples = [max(sample, 0.0) for sample in measurement.samples]  # -1: it failed
        measurement.zero_is("failed")
    elif measurement.samples:
        measurement.status = "ok" if all(measurement.samples) else "wrong"
        if name == "accuracy":  # elsewhere a word
            measurement.code, measurement.samples = f"{measurement.samples[0]:g}", []


FORMAT = Format("helion", matches=_matches, read=v3.read, describe=dict.fromkeys(_BENCHMARKS, describe))
