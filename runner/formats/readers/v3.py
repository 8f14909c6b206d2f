"""PyTorch's v3 benchmark records, the shape of its benchmark database and of our own runner; and the file of
`python -m runner run --output FILE`, which has a line for each task with its records.

Containers: a JSON list, a single object, JSON lines, and lines that are lists. Source: test-infra,
`.github/scripts/upload_benchmark_results.py`, and the wiki page on the OSS benchmark database.
torchdynamo's and gpt-fast's side files and cachebench's list have this shape too.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.format import Format, Item, LocatedRecord, Skipped, each, has_keys
from runner.formats.measurement import (
    TORCH_NAMES,
    ParsedMeasurement,
    batch_size,
    info_of,
    knobs_of,
    origin_of,
    torch_of,
)
from runner.formats.parameters import Parameters
from runner.formats.scalars import number, text
from runner.schema.devices import DEVICE_KINDS, device_kind
from runner.schema.records import Record, first_runner

OURS = "Compiler HUD"  # our runner's records are called so, and then the suite
_OURS_KEYS = {"fingerprint": str, "records": list}  # of a line of our runner's file
_PLACE = re.compile(r" - at `\$(?P<path>.*)`$")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]")
_SLUG = re.compile(r"[^a-z0-9]+")
# Settings that name a place, a moment or a machine, not what was measured.
_NOT_KNOBS = {"device", "arch", "dynamic", "is_dynamic", "output", "hud"}
_PASSING = re.compile(
    r"(^|_)(timestamp|date|time|url|uri|path|dir|directory|folder|file|filename|digest|sha|commit|revision"
    r"|version|run_id|job_id|build_id|workflow_id|host|hostname|machine|description|log"
    r"|output(?!_(len|length|tokens|size|dim|channels|features|dtype)(_|$))"
    r"|arn|conclusion|report)(_|$)"
)
# The build of a nightly package, a commit or a day, whatever it is called: each night has another
_PASSING_VALUE = re.compile(r"\d+\.\d\S*(\.dev20\d{6}|\+git)\S*|[0-9a-f]{40}|20\d\d-\d\d-\d\d.*")
_MAX_RECORD_BYTES = 4 * 2**20  # of which 100,000 samples in full take half
_MAX_KNOBS_LENGTH = 3000  # more settings than that are kept as their digest
_MAX_KNOB_LENGTH = 100
_PEEK_BYTES = 4096
_MOST_SHAPES = 1000  # of one record
_SHAPES = ("shape", "shapes")
_KERNEL_KNOBS = ("record_type", "suite", "source_mode", "actual_dtypes", "timing_policy", "shape_hash")


def read(body: bytes, filename: str) -> Iterator[Item]:
    from runner.formats import json_text

    for item in json_text.read(body, read_record):
        if isinstance(item, LocatedRecord) and (shapes := _shapes_of(item.record)):
            if len(shapes) > _MOST_SHAPES:
                yield Fault(item.pointer, f"a record may have {_MOST_SHAPES} shapes", item.line)
            else:
                yield from _per_shape(item, shapes)
        else:
            yield item


def read_record(text: bytes, pointer: str, line: int | None) -> Item:
    """Return the record of one JSON text, or what is wrong with it."""
    import msgspec

    from runner.formats import json_text

    if len(text) > _MAX_RECORD_BYTES:  # as objects it would take up to forty times its length
        return Fault(pointer, f"the record is over {_MAX_RECORD_BYTES} bytes", line)
    try:
        record = json_text.RECORD.decode(text)
    except msgspec.ValidationError as error:
        return _wrong(text, str(error), pointer, line)
    problem = json_text.problem(text)
    return Fault(pointer, problem, line) if problem else _located(record, pointer, line)


def _wrong(text: bytes, words: str, pointer: str, line: int | None) -> Item:
    """Return what is wrong with a text that is no record, with msgspec's place as a JSON pointer."""
    import msgspec

    with suppress(msgspec.ValidationError):  # it is no object
        metric = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).get("metric", b"null")
        if bytes(metric) == b"null":
            return Skipped(pointer, reasons.NO_METRIC, line)
    if not (match := _PLACE.search(words)):
        return Fault(pointer, words, line)
    path = "".join(f"/{name or index}" for name, index in _STEP.findall(match["path"]))
    return Fault(pointer + path, words[: match.start()], line)


def _located(record: Record, pointer: str, line: int | None) -> Item:
    metric = record.metric
    if metric.name == "tag" and record.benchmark.name == "TorchInductor":
        return Skipped(pointer, reasons.TAG, line)
    words = None if metric.benchmark_values else (metric.extra_info or {}).get("benchmark_values")
    if isinstance(words, list):  # torchdynamo formats its compile phases itself
        numbers = [number(word) if isinstance(word, str) else None for word in words]
        values = [value for value in numbers if value is not None]
        if values and len(values) == len(words):
            metric.benchmark_values = [*values]
    return LocatedRecord(record, pointer, line)


def _shapes_of(record: Record) -> list[Any]:
    """Return the shape of each value where the values are no samples of one experiment, else []."""
    values = record.metric.benchmark_values
    if not values or (record.shape is None and len(values) < 2):
        return []
    info, extra = info_of(record), record.metric.extra_info or {}
    if record.shape is None and info.keys().isdisjoint(_SHAPES) and extra.keys().isdisjoint(_SHAPES):
        return []
    listed = [record.shape, *(facts.get(name) for facts in (info, extra) for name in _SHAPES)]
    fitting = (shapes for shapes in listed if isinstance(shapes, list) and len(shapes) == len(values))
    # [4096, 4096] is one shape
    return next(
        (shapes for shapes in fitting if not any(isinstance(shape, int | float) for shape in shapes)), []
    )


def _per_shape(item: LocatedRecord, shapes: list[Any]) -> Iterator[LocatedRecord]:
    """Yield a record for each shape: Helion and tritonbench write the values of all in one list."""
    whole, metric = item.record, item.record.metric
    for index, (shape, value) in enumerate(zip(shapes, metric.benchmark_values or [], strict=True)):
        name = shape if isinstance(shape, str) else json.dumps(shape)
        info = {key: value for key, value in info_of(whole).items() if key not in _SHAPES}
        record = replace(
            whole,
            benchmark=replace(whole.benchmark, extra_info={**info, "shape": name}),
            metric=replace(metric, benchmark_values=[value]),
            shape=None,
        )
        yield LocatedRecord(record, f"{item.pointer}/metric/benchmark_values/{index}", item.line)


def describe_ours(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    """Complete a record of our own runner, which writes its knobs apart."""
    suite = record.benchmark.name.removeprefix(OURS).strip()
    measurement.suite = origin_of(record) or parameters.suite or suite or "other"
    measurement.knobs = knobs_of(record)
    measurement.dynamic |= bool(info_of(record).get("dynamic"))


def describe_kernel(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    """Complete Better Benchmark's kernel records: the counts of a sweep are no settings of a kernel."""
    info = info_of(record)
    measurement.suite = "inductor_kernel_benchmark"
    measurement.knobs = {
        name: _knob(info[name]) for name in _KERNEL_KNOBS if isinstance(info.get(name), str) and info[name]
    }


def describe_executorch(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    """Complete a record of ExecuTorch, whose runner is a phone with its system, or a GPU with its driver.
    Source: executorch, `.github/scripts/extract_benchmark_results.py` and `.ci/scripts/cuda_benchmark.py`."""
    describe_unknown(measurement, record, parameters)
    # the configuration says model, backend and phone again
    measurement.knobs = {name: knob for name, knob in measurement.knobs.items() if name != "benchmark_config"}
    runner, extra = first_runner(record), record.metric.extra_info or {}
    name, system = text(runner.get("name")), text(runner.get("type"))
    if name and name not in DEVICE_KINDS:
        measurement.device_name = name
        if device_kind(name) in DEVICE_KINDS:
            measurement.device = device_kind(name)
        elif system:
            measurement.knobs["os"] = _knob(system)
    if text(extra.get("method")) not in {"", "forward"}:
        measurement.knobs["method"] = _knob(extra["method"])
    if measurement.metric == "FAILURE_REPORT":
        measurement.zero_is("failed")


def describe_unknown(measurement: ParsedMeasurement, record: Record, parameters: Parameters) -> None:
    """Take all settings of an unknown benchmark as its identity, so that nothing is merged."""
    info = info_of(record)
    slug = _SLUG.sub("_", record.benchmark.name.lower()).strip("_")[:60]
    measurement.suite = parameters.suite or slug or "other"
    measurement.dynamic |= bool(info.get("is_dynamic") or info.get("dynamic"))
    settings = {**(record.model.extra_info or {}), **info}
    torch = torch_of(record)
    own = settings.pop("knobs") if isinstance(settings.get("knobs"), dict) else {}  # as our runner has them
    if isinstance(options := settings.get("args"), dict):  # all of vLLM's or SGLang's, most of them off
        del settings["args"]
        settings = {name: value for name, value in options.items() if value is not False} | settings
    if isinstance(record.inputs, dict) and record.inputs:
        settings["inputs"] = record.inputs
    knobs = {
        name: _knob(value)
        for name, value in {**settings, **own}.items()
        if name in own or not (_is_passing(name, value) or (name in TORCH_NAMES and value == torch))
        if value not in (None, "", [], {})
    }
    size = batch_size(parameters.batch_size)
    if size and "batch_size" not in knobs:
        knobs["batch_size"] = size
    if len(json.dumps(knobs)) > _MAX_KNOBS_LENGTH:
        knobs = {"settings": _knob(knobs)}
    measurement.knobs = knobs


def _is_passing(name: str, value: Any) -> bool:
    passes = name in _NOT_KNOBS or bool(_PASSING.search(name.lower()))
    return passes or (isinstance(value, str) and bool(_PASSING_VALUE.fullmatch(value)))


def _knob(value: Any) -> Any:
    """Return a short setting as it is, a long or nested one as its digest."""
    if isinstance(value, bool | int | float):
        return value
    words = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    if len(words) <= _MAX_KNOB_LENGTH:
        return words
    return "sha256:" + hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_ours(body: bytes, filename: str) -> Iterator[Item]:
    import msgspec

    from runner.formats import json_text

    def records(item: json_text.Value) -> Iterator[Item]:
        for index, record in enumerate(item.value["records"]):
            yield read_record(msgspec.json.encode(record), f"{item.pointer}/records/{index}", item.line)

    what = "a line of our runner has a fingerprint and records"
    return each(json_text.values(body, lambda value: has_keys(value, _OURS_KEYS), what), records)


FORMAT = Format(
    "v3",
    matches=lambda preview: preview.is_json,
    # lines beside torchdynamo's CSV
    grows=lambda body: body.startswith(b"{") and b'"TorchInductor"' in body[:_PEEK_BYTES],
    read=read,
    describe={"inductor-kernel-benchmark": describe_kernel, "ExecuTorch": describe_executorch},
)
OUTPUT = Format(
    "ours",
    matches=lambda preview: (
        preview.names("fingerprint", "task", "outcome") and has_keys(preview.first_value, _OURS_KEYS)
    ),
    read=read_ours,
)
FORMATS = (OUTPUT, FORMAT)
