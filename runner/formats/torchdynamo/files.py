"""The torchdynamo harness's files: for each configuration a CSV of speedups, one of accuracies and one of
compile phases, each with its JSON lines beside it, under the names that PyTorch's dashboard gives them.

As the harness writes them but for what goes wrong there: a column holds what its head says in every row, a
value that is missing is an empty cell and no record, and files are complete after each model.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.formats.format import Writer
from runner.formats.metric_values import is_accuracy_code
from runner.formats.table import TableFile
from runner.formats.torchdynamo.arguments import ARGUMENTS
from runner.formats.torchdynamo.names import PARTS, backend_of
from runner.schema.compilations import INDUCTOR_OPTIONS
from runner.schema.metrics import HARNESS_COUNTS
from runner.schema.records import Json
from runner.schema.statistics import median
from runner.schema.suite import TaskSpec
from runner.schema.tables import rows
from runner.schema.tasks import TaskResult

Row = dict[str, Json]

_FIRST = ("dev", "name", "batch_size")
_ACCURACY = ("accuracy", *HARNESS_COUNTS, "compilation_latency")
# Columns of performance out of our metrics: the first that was measured, and how many of ours make one unit.
_SOURCES = {
    row["column"]: (row["metrics"].split(), float(row["per_unit"])) for row in rows(__file__, "columns.csv")
} | {name: ([name], 1.0) for name in HARNESS_COUNTS}
_SUITES = {"timm": "timm_models"}
# Our statuses in the harness's words, where a failure's own code is none of them.
_WORDS = {
    "wrong": "fail_accuracy",
    "oom": "OOM",
    "timed_out": "timeout",
    "unsupported": "model_fail_to_load",  # as the harness calls what raises NotImplementedError
    "crashed": "fail_to_run",
}
_OTHER_WORD = "infra_error"
_PHASES = "_compilation_metrics"  # ends the name of the file of compile phases
_SAID = {*ARGUMENTS, *PARTS, "batch_size", "dynamic_dimensions", "memory_percent"}
_SAID |= {*INDUCTOR_OPTIONS}


def _kinds(task: TaskSpec) -> list[str]:
    return [kind for kind in ("performance", "accuracy") if task.setting("test") in {"both", kind}]


def _ended(kind: str, records: Mapping[str, Json]) -> bool:
    metric = {"performance": "compiled_latency_ms", "accuracy": "accuracy"}[kind]
    info: Json = records[metric]["metric"].get("extra_info") if metric in records else None
    return bool(info) and info.get("status") != "not_run"


class DynamoFiles(Writer):
    """Write a folder that is named as `PATH` without its suffix."""

    name, suites = "the torchdynamo harness", ("huggingface", "timm", "torchbench")
    known = _SAID

    def places(self, task: TaskSpec) -> list[str]:
        """Name the rows by case, batch size and file. An accuracy row has the check's own batch size, so it
        is not in its name; no row has other arguments."""
        size = f" with batch size {task.knobs['batch_size']}" if "batch_size" in task.knobs else ""
        sizes = {"performance": size, "accuracy": ""}
        return [f"{task.case}{sizes[kind]} in {_stem(task)}_{kind}.csv" for kind in _kinds(task)]

    def files(self, tasks: Sequence[TaskSpec]) -> set[Path]:
        names = {f"{_stem(task)}_{kind}" for task in tasks for kind in _kinds(task)}
        names |= {f"{name}{_PHASES}" for name in names if name.endswith("_performance")}
        return {self._path / f"{name}{suffix}" for name in names for suffix in (".csv", ".json")}

    def __init__(self, path: Path) -> None:
        super().__init__(path.with_suffix(""))
        self._files: dict[str, TableFile] = {}

    def add(self, finished: TaskResult) -> list[Path]:
        spec = finished.task
        records = {record["metric"]["name"]: record for record in finished.records}
        stem, kinds = _stem(spec), _kinds(spec)
        if finished.outcome.status == "cancelled":  # what it did not come to is no failure
            kinds = [kind for kind in kinds if _ended(kind, records)]
        written: list[Path] = []
        if "performance" in kinds:
            written += self._add(f"{stem}_performance", tuple(_SOURCES), spec, _performance(spec, records))
            if phases := _phases(records):
                row = {**_first(spec, records), **phases}
                written += self._add(f"{stem}_performance{_PHASES}", tuple(phases), spec, row)
        if "accuracy" in kinds:
            written += self._add(f"{stem}_accuracy", _ACCURACY, spec, _accuracy(finished, records))
        return written

    def _add(self, name: str, columns: Sequence[str], spec: TaskSpec, row: Row) -> list[Path]:
        self._path.mkdir(parents=True, exist_ok=True)
        file = self._files.setdefault(name, TableFile(self._path / f"{name}.csv", [*_FIRST]))
        return file.add(columns, row, _lines(spec, row, accuracy="accuracy" in columns))


def _stem(spec: TaskSpec) -> str:
    """Return such as ``inductor_with_cudagraphs_huggingface_bfloat16_inference_cuda``."""
    compiler = re.sub("^inductor_cudagraphs", "inductor_with_cudagraphs", backend_of(spec).name(spec.device))
    words = (compiler, "dynamic") if spec.dynamic else (compiler,)
    return "_".join((*words, _SUITES.get(spec.suite, spec.suite), spec.dtype, spec.mode, spec.device))


def _first(spec: TaskSpec, records: Mapping[str, Json]) -> Row:
    infos = (record["benchmark"].get("extra_info") or {} for record in records.values())
    size = next((info["batch_size"] for info in infos if "batch_size" in info), None)
    return {"dev": spec.device, "name": spec.case, "batch_size": size}


def _performance(spec: TaskSpec, records: Mapping[str, Json]) -> Row:
    """Return a row; a model that was not measured has batch size, speedup and latency 0, as there."""
    values = {column: _value(column, records) for column in _SOURCES}
    if values["abs_latency"] is None:
        return {"dev": spec.device, "name": spec.case, "batch_size": 0, "speedup": 0.0, "abs_latency": 0.0}
    return {**_first(spec, records), **values}


def _value(column: str, records: Mapping[str, Json]) -> float | int | None:
    names, scale = _SOURCES[column]
    for name in names:
        samples = records[name]["metric"].get("benchmark_values") if name in records else None
        if samples:
            value = median([float(sample) for sample in samples]) / scale
            return int(value) if column in HARNESS_COUNTS else value
    return None


def accuracy_word(outcome: Mapping[str, Json]) -> str:
    """Return the harness's word for the outcome of a check: its code, or what the status is called there."""
    code: str = outcome.get("code", "")
    return code if is_accuracy_code(code) else _WORDS.get(outcome.get("status", ""), _OTHER_WORD)


def _accuracy(finished: TaskResult, records: Mapping[str, Json]) -> Row:
    """Return a row. The batch size is the small one of the check; 0 where the model did not come so far, as
    the harness writes it."""
    spec, outcome = finished.task, finished.outcome
    info: Json = {"status": outcome.status, "code": outcome.code}
    if "accuracy" in records:
        info = records["accuracy"]["metric"].get("extra_info") or {}
    return {
        "dev": spec.device,
        "name": spec.case,
        "batch_size": info.get("batch_size", 0),
        "accuracy": accuracy_word(info),
        **{name: info.get("counts", {}).get(name) for name in HARNESS_COUNTS},
        "compilation_latency": info.get("compile_s"),
    }


def _phases(records: Mapping[str, Json]) -> dict[str, float]:
    """Return the seconds of each of dynamo's phases, of the cold compile or else the warm one."""
    for name in _SOURCES["compilation_latency"][0]:
        info = records[name]["metric"].get("extra_info") or {} if name in records else {}
        if phases := info.get("phases_s"):
            return {phase: float(seconds) for phase, seconds in phases.items()}
    return {}


def _lines(spec: TaskSpec, row: Row, *, accuracy: bool) -> list[Json]:
    """Return the JSON lines of a row: a record for each value."""
    info = {"device": spec.device, "quantization": None, "batch_size": row["batch_size"] or None}
    info |= _arguments(spec, accuracy=accuracy)
    backend = backend_of(spec)
    benchmark = {"name": "TorchInductor", "mode": spec.mode, "dtype": spec.dtype, "extra_info": info}
    origins = [_SUITES.get(spec.suite, spec.suite)]
    model = {"name": spec.case, "type": "OSS model", "backend": backend.dynamo, "origins": origins}
    lines = []
    for name, value in row.items():
        if name not in _FIRST and value is not None:
            content = {"benchmark_values": [value]}
            metric = {"name": name, **({"extra_info": content} if isinstance(value, str) else content)}
            lines.append({"benchmark": benchmark, "model": model, "metric": metric})
    return lines


def _arguments(spec: TaskSpec, *, accuracy: bool) -> dict[str, Json]:
    """Return the harness's arguments that lead to this task, with defaults that tell runs apart."""
    backend = backend_of(spec)
    same = {name: spec.knobs[name] for name in ARGUMENTS if name in spec.knobs}
    flags = {"triton.cudagraphs", "freezing"}  # they have arguments of their own
    settings = [f"{name}={value}" for name, value in sorted(backend.options.items()) if name not in flags]
    return {
        "accuracy": accuracy,
        "performance": not accuracy,
        "inference": spec.mode == "inference",
        "training": spec.mode == "training",
        **{name: spec.dtype == name for name in ("float32", "float16", "bfloat16", "amp")},
        "inductor": backend.is_inductor,
        "backend": backend.dynamo,
        "disable_cudagraphs": not backend.cudagraphs,
        "freezing": backend.freezing,
        "inductor_compile_mode": None if backend.compile_mode == "default" else backend.compile_mode,
        "inductor_config": settings or None,
        "export": backend.export == "export",
        "export_aot_inductor": backend.export == "aot_inductor",
        "aot_precompile": backend.export == "aot_precompile",
        "dynamic_shapes": spec.dynamic,
        "dynamic_batch_only": spec.dynamic and spec.knobs.get("dynamic_dimensions", "batch") == "batch",
        "cold_start_latency": spec.setting("caches") == "fresh",
        "per_process_memory_fraction": spec.number("memory_percent") / 100,
        **same,
    }
