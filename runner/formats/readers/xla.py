"""PyTorch/XLA's `results.jsonl`: one line for each experiment, a list of values for each metric; the folders
of its dumps; and its reports.

Source: `benchmarks/experiment_runner.py`, _save_results. The repeats are samples; the first one holds the
compilation. Maps of counters and operations become one metric for each number inside. Dump files stay where
they are: a line does not name them.

`metric_report.csv`, `database.csv` and `metric_report.jsonl` are results.jsonl summed up
(`benchmarks/result_analyzer.py`): of each metric the least, median and largest value, and mean and standard
deviation without the first run. -1 stands for no value. Upload results.jsonl itself where it is at hand: it
has every run.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.formats import reasons
from runner.formats.format import Writer, either
from runner.formats.layout import VALUE, Layout, Located, Outcome, Quantity, Reading
from runner.formats.measurement import MODES
from runner.formats.metric_values import VERIFIER_CODES, status_of_error
from runner.formats.scalars import number_of, numbers_in, shortened, text
from runner.formats.table import pointer
from runner.schema.records import Json, object_of
from runner.schema.suite import TaskSpec, suite_of
from runner.schema.tasks import TaskResult

_NOT_KNOBS = {"accelerator", "accelerator_model", "dynamo", "test", "dtype", "outputs_file"}
# Codes of a verification that ran: then an error is its own, and nothing was to be measured.
_VERIFIER_RAN = {"PASS", "FAIL", "EAGER_FAILED", "EXCEPTION_RAISED", "NONDETERMINISTIC_EAGER_RUN"}
# Knobs that its lines name by themselves; others stand beside the axes.
_NAMED = {"xla", "batch_size", "iterations_per_run", "origin", "enable_functionalization"}
_MAPS = ("dynamo_counters", "xla_unlowered_ops", "inductor_ops")
# Kinds of our artifacts → names of its dumps.
_DUMPS = {
    "hlo": "hlo", "ir": "dump", "dynamo_counters": "dynamo-counters", "profile": "pytorch-profile",
    "trace": "trace", "xla_metrics": "pytorch-xla-metrics", "output": "output",
}  # fmt: skip
_ONE_FOLDER = ("hlo", "ir")  # of all repeats
_DTYPE = "float32"  # which they mean where they say none
ON_XLA = ("openxla", "xla")  # backends on an XLA device
RUNTIME = "PJRT"  # of XLA devices, the only one since torch_xla 2.1
# A metric of one operation in a map, as pages show them in a table.
OF_OPERATION = re.compile(r"(?P<map>xla_unlowered_ops|inductor_ops)\.(?P<operation>.+)\.(?P<metric>\w+)")
_REPORT_COLUMNS = {"suite_name", "model_name", "accelerator", "xla", "dynamo", "test"}
_AXES = ("accelerator", "accelerator_model", "xla", "xla_flags", "dynamo", "torch_xla2", "test")
_METRIC = re.compile(r"(min|median|max|mean|std)_\w.*|xla_median_\w.*|(xla|dynamo)_compile_time")
_NONE = {"", "None", "nan", "NaN"}


def dynamo_backend(backend: str) -> str:
    """Return what `--dynamo` is called with for a backend; '' for eager mode and for lazy tensors."""
    return backend if backend in {"inductor", "openxla"} else ""


def _experiment_of(value: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment of a line: the axes that are columns in their places, the others as knobs.
    Without dynamo its backend is XLA's lazy tensors, torchax, or eager."""
    experiment, model = value["experiment"], value["model"]
    knobs = {
        name: setting
        for name, setting in experiment.items()
        if name not in _NOT_KNOBS and isinstance(setting, str | int | float) and setting is not False
    }
    iterations = value.get("iterations_per_run")
    if isinstance(iterations, int) and iterations != 1:
        knobs["iterations_per_run"] = iterations
    plain = "xla" if experiment.get("xla") else "torch_xla2" if experiment.get("torch_xla2") else "eager"
    test = text(experiment.get("test"))
    return {
        "case": model.get("model_name"),
        "mode": MODES.get(test, test),
        "dtype": experiment.get("dtype"),
        "backend": text(experiment.get("dynamo")) or plain,
        "device": experiment.get("accelerator"),
        "arch": experiment.get("accelerator_model"),
        "knobs": {**knobs, "origin": text(model.get("suite_name"))},
        "timestamp": value.get("timestamp"),
    }


def _cells(value: dict[str, Any]) -> Iterator[Located]:
    """Yield each value of a line, and what it says of the verification and of values that it lacks."""
    shared = _experiment_of(value)
    if not text(shared["case"]):
        yield "/model/model_name", {"case": "", VALUE: None}
        return
    measured = dict(value["metrics"])
    error = measured.pop("error", None)
    code, ours = text(value.get("verification_code")), object_of(value.get("runner"))
    found = {name: _leaves_of(name, cell) for name, cell in measured.items()}
    outcomes: list[tuple[str, str, dict[str, Any]]] = []
    if code:
        reason = error if isinstance(error, str) else None
        check = object_of(ours.get("check"))
        said = {"code": code, **check} if check else {"benchmark_values": [code], "reason": reason}
        outcomes.append(("/verification_code", "verification_code", said))
    names = ours.get("without")  # metrics that our own runner has no value of
    if without := [name for name in names if isinstance(name, str)] if isinstance(names, list) else []:
        outcomes += [("/runner/without", name, _no_value(ours)) for name in without]
    elif isinstance(error, str) and code not in _VERIFIER_RAN:
        status, word = status_of_error(error)
        outcomes.append(("/metrics/error", "total_time", {"benchmark_values": [word], "status": status}))
    elif code not in _VERIFIER_RAN and not any(found.values()):
        outcomes.append(("/metrics", "total_time", _no_value(ours)))
    for place, metric, said in outcomes:
        yield place, {**shared, "metric": metric, VALUE: Outcome(said)}
    for name, leaves in found.items():
        place = f"/metrics/{name}"
        if not leaves:
            is_empty = measured[name] in (None, []) or set(map(str, measured[name])) == {"None"}
            yield place, reasons.NULL_VALUE if is_empty else reasons.NO_NUMBER_INSIDE
        for leaf, samples in leaves.items():  # a graph break is named after its whole reason
            yield place, {**shared, "metric": shortened(leaf), VALUE: samples}


def _no_value(ours: dict[str, Any]) -> dict[str, Any]:
    """Return why there is no value, as our runner says it; with ok or nothing it was not measured."""
    said = {name: ours.get(name) for name in ("status", "code", "reason")}
    if said["status"] not in (None, "ok"):  # it may be of any kind
        return said
    return {"status": "not_run", "code": "no_value", "reason": "its line has no value of it"}


def _leaves_of(name: str, values: Any) -> dict[str, list[Any]]:
    """Return the samples of a metric: a list of numbers is one metric, a list of maps one for each number
    inside."""
    leaves: dict[str, list[Any]] = {}
    name = name.replace("xla_ExecutionTime_", "xla_ExecuteTime_")  # as the documentation has it
    for repeat in values if isinstance(values, list) else [values]:
        for leaf, sample in _leaves(name, repeat):
            leaves.setdefault(leaf, []).append(sample)
    return leaves


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _leaves(f"{name}.{key}", inside)
    elif value is not None:
        yield name, value


def _of_report(value: dict[str, Any]) -> Iterator[Located]:
    said = {**value["dimensions"], **value["metrics"], "error_message": value.get("error_message")}
    return _summed_cells(said, value["metrics"], "/metrics")


def _summed_cells(said: Mapping[str, Any], measured: Mapping[str, Any], place: str) -> Iterator[Located]:
    """Yield each value of a line; without any, why there is none."""
    shared = _summed_experiment(said)
    if not text(shared["case"]):
        yield "/dimensions/model_name" if place else "/model_name", {"case": "", VALUE: None}
        return
    cells = {name: cell for name, cell in measured.items() if _METRIC.fullmatch(name)}
    for name, cell in cells.items():
        yield place + pointer(name), {**shared, "metric": shortened(name), VALUE: cell}
    if all(number_of(cell) in {None, -1} for cell in cells.values()):
        error = text(said.get("error_message")) or ("failed" if said.get("run_status") == "failure" else "")
        status, code = status_of_error(error) if error else ("not_run", "no_value")
        yield place, {**shared, "metric": "median_total_time", VALUE: Outcome(status=status, code=code)}


def _summed(cell: Any, metric: str) -> Reading:
    if str(cell) in _NONE:
        return reasons.EMPTY_CELL
    return reasons.NO_VALUE_WRITTEN if number_of(cell) == -1 else numbers_in(cell)


def _summed_experiment(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same experiment as that of the line of results.jsonl."""
    experiment = {name: None if str(said.get(name)) in _NONE else said.get(name) for name in _AXES}
    experiment = {name: value for name, value in experiment.items() if value not in (None, "False")}
    if "run_status" in said and experiment.get("accelerator") == experiment.get("accelerator_model"):
        experiment["accelerator"] = ""  # the lines have the model's name there
    size, iterations = number_of(said.get("batch_size")), number_of(said.get("iterations_per_run"))
    if size is not None and size > 0:
        experiment["batch_size"] = int(size)
    value = {"experiment": experiment, "model": said, "timestamp": said.get("timestamp")}
    return _experiment_of({**value, "iterations_per_run": 1 if iterations is None else int(iterations)})


class XlaFiles(Writer):
    """Write `results.jsonl` in the folder PATH, or PATH itself where it ends in .jsonl; a line for each cell.

    `runner` holds what PyTorch/XLA's lines cannot say, and its own readers ignore it: our status with its
    reason, and whether a check was asked for.
    """

    name, suites = "PyTorch/XLA", ("xla",)
    default_file = "output/results.jsonl"

    def places(self, task: TaskSpec) -> list[str]:
        return [_dump_name(task)]

    def files(self, tasks: Sequence[TaskSpec]) -> set[Path]:
        folder = self._path.parent
        return {self._path, *(folder / task.case for task in tasks if task.asks_for_artifacts())}

    def unsupported_reason(self, _task: TaskSpec) -> str:
        return ""

    def __init__(self, path: Path) -> None:
        super().__init__(path if path.suffix == ".jsonl" else path / "results.jsonl")

    def add(self, finished: TaskResult) -> list[Path]:
        if not finished.records:
            return []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(_line(finished)) + "\n")
        written = [self._path]
        configuration = _dump_name(finished.task)
        # artifacts move to `MODEL/[REPEAT/]KIND-CONFIGURATION…`, as there
        for path in sorted((finished.folder / "artifacts").glob("*/*")):
            kind = path.parent.name
            if kind not in _DUMPS:
                continue
            name = f"{_DUMPS[kind]}-{configuration}"
            dump = f"{name}/{path.name}" if kind == "hlo" else f"{name}{path.suffix}"
            repeat = "" if kind in _ONE_FOLDER else path.stem
            target = self._path.parent / finished.task.case / repeat / dump
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
            written.append(target)
        return written


def _line(finished: TaskResult) -> dict[str, Json]:
    first = finished.records[0]
    info = first["benchmark"]["extra_info"]
    knobs = info["knobs"]
    defaults = {option.name: option.default for option in suite_of(finished.task.suite).options}
    return {
        "model": {"suite_name": knobs["origin"], "model_name": finished.task.case},
        "experiment": {
            **_axes(finished.task),
            "accelerator_model": info["arch"],
            "batch_size": knobs["batch_size"],
            "dtype": first["benchmark"]["dtype"],
            **{name: value for name, value in knobs.items() if name not in _NAMED},
        },
        "repeat": finished.task.knobs.get("repeat", defaults["repeat"]),
        "iterations_per_run": knobs.get("iterations_per_run", defaults["iterations_per_run"]),
        "metrics": _metrics_of(finished),
        "timestamp": first["timestamp"],
        **_outcome(finished),
    }


def _axes(task: TaskSpec) -> dict[str, Json]:
    """Return the axes of an experiment that its names of dumps say too."""
    return {
        "accelerator": task.device,
        "xla": RUNTIME if task.backend in ON_XLA else None,
        "xla_flags": task.setting("xla_flags"),
        "dynamo": dynamo_backend(task.backend) or None,
        "torch_xla2": None,
        "test": "train" if task.mode == "training" else "eval",
        "enable_functionalization": bool(task.setting("enable_functionalization")),
    }


def _outcome(finished: TaskResult) -> dict[str, Json]:
    """Return the verifier's code, and what it leaves open in our words."""
    metrics = [record["metric"] for record in finished.records]
    codes = (metric["extra_info"] for metric in metrics if metric["name"] == "verification_code")
    checked: dict[str, Json] = next(codes, {})
    code = checked.get("code")
    facts = ("status", "code", "check_requested", "check_status", "reason")
    ours: dict[str, Json] = {"check": {name: checked[name] for name in facts if name in checked}}
    if code not in VERIFIER_CODES:  # the task ended before its verifier told anything
        asked = finished.task.setting("verify") and finished.outcome.status != "unsupported"
        code = "VERIFIER_DIDNT_RUN" if asked else "VERIFIER_SKIPPED"
    missing = [metric for metric in metrics if "benchmark_values" not in metric]
    missing = [metric for metric in missing if metric["name"] != "verification_code"]
    if missing:
        said = missing[0]["extra_info"]
        ours |= {name: said[name] for name in ("status", "code", "reason")}
        ours["without"] = [metric["name"] for metric in missing]
    return {"verification_code": code, "runner": ours}


def _metrics_of(finished: TaskResult) -> dict[str, Json]:
    """Return a list for each metric, one value a repeat; maps of counters and operators are nested."""
    cells: dict[str, Json] = {}
    for metric in (record["metric"] for record in finished.records):
        if "benchmark_values" not in metric:
            continue
        values = metric["benchmark_values"]
        kind, _, rest = metric["name"].partition(".")
        if kind in _MAPS and rest:
            group, _, name = rest.partition(".") if kind == _MAPS[0] else rest.rpartition(".")
            repeats = cells.setdefault(kind, [])
            repeats += [{} for _ in range(len(values) - len(repeats))]
            for repeat, value in zip(repeats, values, strict=False):
                repeat.setdefault(group, {})[name] = value
        else:
            cells[metric["name"]] = values
    if finished.outcome.status != "ok" and "total_time" not in cells:
        skipped = finished.outcome.status == "unsupported"
        cells["error"] = "SKIP" if skipped else finished.outcome.reason
    return cells


def _dump_name(task: TaskSpec) -> str:
    """Return PyTorch/XLA's name for a cell: the values of the axes in the order of their names, then the
    model. Append dtype and knobs, which it leaves out, so that no file overwrites another. A digest stands
    for flags, which may be longer than a name."""
    said = _axes(task)
    if said["xla_flags"]:
        said["xla_flags"] = f"flags_{hashlib.sha256(str(said['xla_flags']).encode()).hexdigest()[:12]}"
    knobs = sorted((name, value) for name, value in task.identity().items() if name not in {*said, "origin"})
    return "-".join(
        [
            *(str(said[axis]) for axis in sorted(said)),
            task.case,
            *([] if task.dtype == _DTYPE else [task.dtype]),
            *(name if value is True else f"{name}={value}" for name, value in knobs),
        ]
    )


FORMAT = Layout("PyTorch/XLA benchmark", suite="xla", time="timestamp").of_json(
    "xla",
    {"model": dict, "experiment": dict, "metrics": dict},
    _cells,
    writer=XlaFiles,
)
_REPORT = Layout(
    "PyTorch/XLA benchmark report",
    quantities={VALUE: Quantity(read=_summed)},
    suite="xla",
    time="timestamp",
)
REPORT = either(
    _REPORT.of_json("xla_report", {"metrics": dict, "dimensions": dict}, _of_report),
    _REPORT.of_tables(
        "xla_report", _REPORT_COLUMNS.issubset, entries=lambda row: _summed_cells(row, row, "")
    ),
)
FORMATS = (FORMAT, REPORT)
