"""Helion's benchmark: v3 records whose `benchmark_values` are one number for each shape, not samples.

Source: `benchmarks/run.py`, write_results_to_json. `shape` lists the shapes in the same order, and
`extra_info.device` is the GPU's name. A metric is called `<kernel>_<metric>`, as triton_accuracy. 0 stands
for a shape that failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner.formats import reasons, v3
from runner.formats.errors import Fault
from runner.formats.format import Format, Item, LocatedRecord, Preview, Skipped
from runner.formats.measurement import DEVICES, ParsedMeasurement, knobs_of
from runner.formats.parameters import Parameters
from runner.formats.scalars import finite, number, shortened, text
from runner.schema.records import Benchmark, Metric, Model, Record

_BENCHMARK = "Helion Benchmark"
_KERNEL = re.compile(r"(?P<kernel>\w+?)_(?:speedup|accuracy|latency|latency_ms|tflops|gbps|compile_time_s)")


def _matches(preview: Preview) -> bool:
    return preview.names(_BENCHMARK, "benchmark_values", "shape") and bool(_first(preview.first_value))


def _first(value: Any) -> Any:
    return _is_helion(value[0] if isinstance(value, list) and value else value)


def _is_helion(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("benchmark"), dict)
        and value["benchmark"].get("name") == _BENCHMARK
        and isinstance(value.get("shape"), list)
    )


def read(body: bytes, filename: str) -> Iterator[Item]:
    import msgspec

    from runner.formats import json_text

    record_of = v3.record_reader()
    for item in json_text.values(body):
        if isinstance(item, Fault):
            yield item
            continue
        found = record_of(msgspec.json.encode(item.value), item.pointer, item.line)
        if isinstance(found, LocatedRecord) and _is_helion(item.value):
            yield from _by_shape(found, item.value["shape"])
        else:
            yield found


def _by_shape(found: LocatedRecord, shapes: list[Any]) -> Iterator[Item]:
    record, metric = found.record, found.record.metric
    values = (metric and metric.benchmark_values) or []
    place = f"{found.pointer}/metric/benchmark_values"
    if metric is None or not values:
        yield Skipped(found.pointer, reasons.NO_VALUES, found.line)
        return
    if len(values) != len(shapes):
        yield Fault(place, f"there are {len(values)} values for {len(shapes)} shapes", found.line)
        return
    info = record.benchmark.extra_info or {}
    device = text(info.get("device"))
    of_metric = _KERNEL.fullmatch(metric.name)
    kernel = of_metric["kernel"] if of_metric else "helion"
    for index, (shape, value) in enumerate(zip(shapes, values, strict=True)):
        sample = number(value) if isinstance(value, str) else finite(value)
        if sample is None:
            yield Fault(f"{place}/{index}", f"{repr(value)[:60]} is not a number", found.line)
            continue
        knobs = {"shape": shortened(shape if isinstance(shape, str) else str(shape))}
        if kernel == "helion" and text(info.get("backend")) not in {"", "triton"}:
            knobs["helion_backend"] = info["backend"]
        said = {"knobs": knobs, **({"device": device} if device in DEVICES else {"arch": device})}
        one = replace(
            record,
            benchmark=Benchmark(_BENCHMARK, record.benchmark.mode, record.benchmark.dtype, said),
            model=Model(record.model.name, "operator", kernel),
            metric=Metric(metric.name, [sample]),
        )
        yield LocatedRecord(one, f"{place}/{index}", found.line)


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    measurement.suite = "helion"
    measurement.knobs = knobs_of(record)
    if measurement.device_name in {"", "unknown"}:
        measurement.device_name = given.arch
    measurement.zero_is("wrong" if measurement.metric.endswith("accuracy") else "failed")


FORMAT = Format("helion", matches=_matches, read=read, describe={_BENCHMARK: describe})
