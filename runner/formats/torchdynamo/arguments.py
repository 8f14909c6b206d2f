"""The arguments of `benchmarks/dynamo/common.py`, which a record has in its extra_info.

Its CSVs have neither arguments nor compiler: those are parameters of the upload, or stand in the file's name.
"""

import json
from typing import Any

from runner.formats.measurement import ParsedMeasurement, batch_size, info_of, origin_of, suite_name
from runner.formats.parameters import Parameters
from runner.formats.scalars import base_name
from runner.formats.torchdynamo.batch_sizes import default_batch_size, suite_of_model
from runner.formats.torchdynamo.names import OTHER_COMPILERS, flagged, inductor_settings, named
from runner.schema.records import Record
from runner.schema.tables import rows

_ROWS = rows(__file__, "arguments.csv")
_DEFAULTS: dict[str, dict[str, Any]] = {  # by kind of run
    run: {row["argument"]: json.loads(row["default"]) for row in _ROWS if row["run"] in ("", run)}
    for run in ("accuracy", "performance")
}
ARGUMENTS = (*(row["argument"] for row in _ROWS), "threads")  # of which knobs have the names
_AMP_TYPES = {"amp_bf16": "bfloat16", "amp_fp16": "float16"}
_UNKNOWN_SUITE = "torchdynamo"
_DYNAMIC = ("dynamic_shapes", "dynamic_batch_only", "unbacked_batch_only")
_IN_BACKEND = {"cpp_wrapper", "freezing", "max_autotune", "triton.cudagraphs"}
# Metrics of which 0 is how the script writes that there is no value, and the status it stands for.
_ZERO = {
    **dict.fromkeys(("speedup", "abs_latency"), "failed"),
    # nothing counts the device's memory, nothing was compiled, or the earlier file does not have the model
    **dict.fromkeys(("compression_ratio", "eager_peak_mem", "dynamo_peak_mem"), "not_run"),
    **dict.fromkeys(("compilation_latency", "accuracy_compilation_latency"), "not_run"),
    **dict.fromkeys(("baseline", "speedup_vs_baseline"), "not_run"),
}


def describe(measurement: ParsedMeasurement, record: Record, given: Parameters) -> None:
    info = info_of(record)
    _take_compiler(measurement, info)
    kind = "accuracy" if info.get("accuracy") else "tolerance" if info.get("tolerance") else ""
    if kind not in ("", measurement.metric):  # such a run compiles something else
        measurement.metric = f"{kind}_{measurement.metric}"
    measurement.suite = (
        origin_of(record) or suite_name(given.suite) or suite_of_model(measurement.case) or _UNKNOWN_SUITE
    )
    measurement.knobs = _knobs(info, measurement.device)
    if measurement.dtype in _AMP_TYPES:  # as files and folders are called; the arguments say both apart
        measurement.knobs["amp_dtype"] = _AMP_TYPES[measurement.dtype]
        measurement.dtype = "amp"
    if not kind:  # else the batch size is the suite's small one
        size = batch_size(info.get("batch_size", given.batch_size))
        if size not in (None, default_batch_size(measurement.suite, measurement.case, measurement.mode)):
            measurement.knobs["batch_size"] = size
    measurement.is_appended = True
    if measurement.suite == _UNKNOWN_SUITE:
        measurement.unsaid = ("suite",)
    if not measurement.backend or (measurement.backend == "inductor" and measurement.device == "cuda"):
        measurement.unsaid += ("backend",)
    if measurement.metric in _ZERO:
        measurement.zero_is(_ZERO[measurement.metric])


def _take_compiler(measurement: ParsedMeasurement, info: dict[str, Any]) -> None:
    """Take the compiler, and whether shapes are dynamic, from the arguments, or from the backend's name."""
    compiler = None
    if "disable_cudagraphs" not in info:  # no arguments: a CSV, or a record of another script
        compiler = named(measurement.backend)
    elif measurement.backend == "inductor" or info.get("export_aot_inductor"):
        compiler = flagged(info)
    else:
        flags = (name for flag, name in OTHER_COMPILERS.items() if info.get(flag) is True)
        measurement.backend = next(flags, measurement.backend)
    if compiler:
        measurement.backend = compiler.name(measurement.device)
    measurement.dynamic |= any(info.get(flag) for flag in _DYNAMIC) or bool(compiler and compiler.dynamic)


def _knobs(info: dict[str, Any], device: str) -> dict[str, Any]:
    knobs = {
        name: value
        for name, default in _DEFAULTS["accuracy" if info.get("accuracy") else "performance"].items()
        if (value := info.get(name)) not in (None, default) and isinstance(value, str | int | float | bool)
    }
    if info.get("dynamic_shapes") and info.get("dynamic_batch_only") is False:
        knobs["dynamic_dimensions"] = "all"  # upstream's dynamic runs make the batch alone dynamic
    if knobs.get("batch_size_file"):
        knobs["batch_size_file"] = base_name(str(knobs["batch_size_file"]))
    if device == "cpu" and isinstance(info.get("threads"), int):
        knobs["threads"] = info["threads"]
    if info.get("ddp") and info.get("optimize_ddp_mode") not in (None, "ddp_optimizer"):
        knobs["optimize_ddp_mode"] = str(info["optimize_ddp_mode"])
    if info.get("use_warm_peak_memory") and not info.get("dashboard"):
        knobs["use_warm_peak_memory"] = True
    settings = {name: value for name, value in inductor_settings(info).items() if name not in _IN_BACKEND}
    if settings:
        knobs["inductor_config"] = ",".join(f"{name}={value}" for name, value in sorted(settings.items()))
    return knobs
