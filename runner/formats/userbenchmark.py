"""torchbench's userbenchmarks: `metrics-YYYYmmddHHMMSS.json` with a name, an environment and metrics.

Source: `userbenchmark/utils.py`, get_output_json, and `userbenchmark/test_bench/run.py`, whose metrics are
called "model=X, test=eval, device=cuda, bs=None, extra_args=[], metric=latencies". Other userbenchmarks
name their metrics as they like. A text in a number's place tells of a failure.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.format import Format, Item, LocatedRecord, Skipped, each
from runner.formats.measurement import MODES, ParsedMeasurement, knobs_of, origin_of
from runner.formats.metric_values import NOT_FINITE
from runner.formats.parameters import Parameters
from runner.formats.scalars import finite, shortened
from runner.formats.statuses import status_of_error
from runner.formats.table import pointer
from runner.schema.devices import DEVICE_KINDS
from runner.schema.records import Benchmark, Metric, Model, Record

_BENCHMARK = "torchbench userbenchmark"
_TEST_BENCH = re.compile(
    r"model=(?P<model>[^,]+), test=(?P<test>[^,]*), device=(?P<device>[^,]*), bs=(?P<bs>[^,]*),"
    r" extra_args=(?P<extra_args>.*), metric=(?P<metric>[^,]+)"
)
_MODEL_TEST = re.compile(r"(?P<model>.+)-(?P<test>eval|train)_(?P<metric>\w+)")
# userbenchmark/cpu: ms and GB, as test_bench's; PyTorch HUD's own `latency` is in seconds
_CPU_METRICS = {"latency": "latencies", "cmem": "cpu_peak_mem", "gmem": "gpu_peak_mem"}
_PRECISIONS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "amp": "amp"}
_STAMP = re.compile(r"metrics-(\d{14})\.json")
_MEMLEAK = {"True": "wrong", "False": "ok"}
_MAX_TEXT = 200
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SIZE = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_UNKNOWN_VERSION = "<unknown>"


def _is_result(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("environ"), dict)
        and isinstance(value.get("metrics"), dict)
    )


def read(body: bytes, filename: str) -> Iterator[Item]:
    from runner.formats import json_text

    stamp, hints = _STAMP.search(filename), {}
    with contextlib.suppress(ValueError):  # 14 digits that are no time
        if stamp:
            hints = {"run_time": datetime.strptime(stamp[1] + "+0000", "%Y%m%d%H%M%S%z").isoformat()}
    what = "a userbenchmark is an object with name, environ and metrics"

    def records(item: json_text.Value) -> Iterator[Item]:
        for name, value in item.value["metrics"].items():
            place = f"{item.pointer}/metrics{pointer(name)}"
            metric = _metric(name, value, place, item.line)
            if isinstance(metric, Metric):
                yield LocatedRecord(_record(item.value, name, metric), place, item.line, hints)
            else:
                yield metric

    return each(json_text.values(body, _is_result, what), records)


def _metric(name: str, value: Any, place: str, line: int | None) -> Metric | Skipped | Fault:
    if value is None:
        return Skipped(place, reasons.NULL_VALUE, line)
    if isinstance(value, str):
        if value in NOT_FINITE:
            return Fault(place, f"{value} is no measured value", line, malformed=True)
        leak = _MEMLEAK.get(value) if name.endswith("metric=memleak") else None
        status, code = (leak, value) if leak else status_of_error(value)
        return Metric("", extra_info={"benchmark_values": [code], "status": status})
    listed = value if isinstance(value, list) else [value]
    if not listed:
        return Skipped(place, reasons.NO_VALUES, line)
    numbers = [number for item in listed if (number := finite(item)) is not None]
    if len(numbers) < len(listed):
        return Fault(place, f"{repr(value)[:60]} is not a number", line)
    return Metric("", [*numbers])


def _record(whole: dict[str, Any], name: str, metric: Metric) -> Record:
    environ = whole["environ"]
    found = _TEST_BENCH.fullmatch(name)
    benchmark, model, metric.name = _of_test_bench(found) if found else _of_other(whole["name"], name)
    assert benchmark.extra_info is not None
    device = environ.get("device")
    if isinstance(device, str):
        benchmark.extra_info["arch"] = device
    torch = {"version": environ.get("pytorch_version"), "sha": environ.get("pytorch_git_version")}
    known = {key: said for key, said in torch.items() if isinstance(said, str) and said != _UNKNOWN_VERSION}
    commit = known.get("sha", "")
    return Record(
        benchmark,
        model,
        metric,
        dependencies={"torch": known},
        head_sha=commit if _COMMIT.fullmatch(commit) else None,
    )


def _of_test_bench(found: re.Match[str]) -> tuple[Benchmark, Model, str]:
    arguments = _arguments(found["extra_args"])
    knobs: dict[str, Any] = {"batch_size": int(found["bs"])} if _SIZE.fullmatch(found["bs"]) else {}
    precision, backend, others = _understood(arguments)
    if others:
        knobs["extra_args"] = shortened(" ".join(others), _MAX_TEXT)
    benchmark = Benchmark(
        _BENCHMARK,
        MODES.get(found["test"], found["test"]),
        precision or None,
        {"device": found["device"], "knobs": knobs},
    )
    return benchmark, Model(found["model"], "OSS model", backend, ["torchbench"]), found["metric"]


def _arguments(text: str) -> list[str]:
    """Split arguments, as test_bench writes them (a quoted list) or group_bench (with blanks between);
    ``--name=value`` is two."""
    quoted = [single or double for single, double in _WORD.findall(text)]
    words = quoted if text.startswith("[") else text.split()
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def _understood(arguments: list[str]) -> tuple[str, str, list[str]]:
    """Return dtype, backend and the arguments that name neither."""
    dtype, backend, others = "", "eager", []
    rest = iter(arguments)
    for argument in rest:
        if argument in {"--precision", "--precisions"}:
            precision = next(rest, "")
            dtype = _PRECISIONS.get(precision, precision)
        elif argument in {"--torchdynamo", "--dynamo"}:
            backend = next(rest, "inductor")
        elif argument == "--inductor":
            backend = "inductor"
        elif argument not in {"--accuracy", "--memleak"}:
            others.append(argument)
    return dtype, backend, others


def _of_other(userbenchmark: str, name: str) -> tuple[Benchmark, Model, str]:
    found = _MODEL_TEST.fullmatch(name)
    origin = re.sub(r"[^a-z0-9]+", "_", userbenchmark.lower()).strip("_")[:60] or "userbenchmark"
    info: dict[str, Any] = {"knobs": {}}
    if userbenchmark in DEVICE_KINDS:  # userbenchmark/cpu
        info["device"] = userbenchmark
    benchmark = Benchmark(_BENCHMARK, MODES[found["test"]] if found else None, extra_info=info)
    if found:
        metric = _CPU_METRICS.get(found["metric"], found["metric"])
        return benchmark, Model(found["model"], "OSS model", origins=["torchbench"]), metric
    return benchmark, Model(shortened(name), origins=[origin]), "value"


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    measurement.suite = origin_of(record) or given.suite or "userbenchmark"
    measurement.knobs = knobs_of(record)
    if measurement.metric == "latencies":
        measurement.zero_is("failed")


FORMAT = Format(
    "userbenchmark",
    matches=lambda preview: preview.names("metrics", "name") and _is_result(preview.first_value),
    read=read,
    describe={_BENCHMARK: describe},
)
