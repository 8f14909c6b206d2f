"""PyTorch/XLA's `results.jsonl`: one line for each experiment, a list of values for each metric.

Source: `benchmarks/experiment_runner.py`, _save_results. The repeats are samples; the first one holds the
compilation. Maps of counters and operations become one metric for each number inside. Dump files stay
where they are: a line does not name them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.catalog.codes import status_of_error
from runner.formats import Placed, reasons
from runner.formats.errors import Fault
from runner.formats.json_text import Item, begins_with, finite, first, items, shortened
from runner.formats.table import number
from runner.formats.unicode import text
from runner.records import Benchmark, Metric, Model, Record

_MODES = {"eval": "inference", "train": "training"}
_NOT_KNOBS = {"accelerator", "accelerator_model", "dynamo", "test", "dtype", "outputs_file"}
# Codes of a verification that ran: then an error is its own, and nothing was to be measured.
_VERIFIER_RAN = {"PASS", "FAIL", "EAGER_FAILED", "EXCEPTION_RAISED", "NONDETERMINISTIC_EAGER_RUN"}
_MAX_DEPTH = 8


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the keys say it
    return begins_with(body, "experiment", "model_name") and _is_result(first(body))


def _is_result(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("model"), dict)
        and isinstance(value.get("experiment"), dict)
        and isinstance(value.get("metrics"), dict)
    )


def read(body: bytes, filename: str) -> Iterator[Placed]:  # noqa: ARG001
    for item in items(body):
        wrong = item.fault or _wrong(item)
        if wrong:
            yield Placed(None, wrong.pointer, wrong.line, fault=wrong)
        else:
            yield from _records(item)


def _wrong(item: Item) -> Fault | None:
    if not _is_result(item.value):
        detail = "a result is an object with model, experiment and metrics"
        return Fault(item.pointer, detail, item.line)
    name = item.value["model"].get("model_name")
    if not isinstance(name, str) or not name:
        return Fault(f"{item.pointer}/model/model_name", "the model has no name", item.line)
    return None


def _records(item: Item) -> Iterator[Placed]:
    value = item.value
    benchmark, model, timestamp = _benchmark(value), _model(value), _timestamp(value.get("timestamp"))
    measured = dict(value["metrics"])
    error = measured.pop("error", None)
    code, ours = text(value.get("verification_code")), _ours(value)
    found: list[tuple[Metric, str]] = []
    if code:
        said: dict[str, Any] = {
            "benchmark_values": [code],
            "reason": error if isinstance(error, str) else None,
        }
        if check := _map(ours.get("check")):
            said = {**check, "code": code}
        found.append((Metric("verification_code", extra_info=said), "/verification_code"))
    without = _without(ours)
    if without:
        found += [(Metric(name, extra_info=_no_value(ours)), "/runner/without") for name in without]
    elif isinstance(error, str) and code not in _VERIFIER_RAN:
        status, word = status_of_error(error)
        said = {"benchmark_values": [word], "status": status}
        found.append((Metric("total_time", extra_info=said), "/metrics/error"))
    elif code not in _VERIFIER_RAN and not any(map(_holds_number, measured.values())):
        found.append((Metric("total_time", extra_info=_no_value(ours)), "/metrics"))
    for metric, place in found:
        yield Placed(Record(benchmark, model, metric, timestamp=timestamp), item.pointer + place, item.line)
    for name, values in measured.items():
        yield from _measured(item, _spelled(name), values, Record(benchmark, model, timestamp=timestamp))


def _ours(value: dict[str, Any]) -> dict[str, Any]:
    """What our own runner says beside: its status, and whether a check was asked for."""
    return _map(value.get("runner"))


def _without(ours: dict[str, Any]) -> list[str]:
    """Metrics that our own runner has no value of."""
    names = ours.get("without")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _no_value(ours: dict[str, Any]) -> dict[str, Any]:
    """Why there is no value, as our runner says it. Whoever says ok, or nothing, has not measured it."""
    said = {name: ours.get(name) for name in ("status", "code", "reason")}
    if said["status"] not in (None, "ok"):  # it may be of any kind
        return said
    return {"status": "not_run", "code": "no_value", "reason": "its line has no value of it"}


def _holds_number(value: Any) -> bool:
    """Whether a metric's value, or a list or map of values, has a number somewhere; what else stands there
    is found wrong later."""
    if isinstance(value, list | dict):
        return any(map(_holds_number, value.values() if isinstance(value, dict) else value))
    return value is not None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _benchmark(value: dict[str, Any]) -> Benchmark:
    """The experiment's axes: those with a name of ours in its place, the others as knobs."""
    experiment = value["experiment"]
    knobs = {
        name: setting
        for name, setting in experiment.items()
        if name not in _NOT_KNOBS
        and isinstance(setting, str | int | float)
        and setting is not False
        and setting != ""
    }
    iterations = value.get("iterations_per_run")
    if isinstance(iterations, int) and iterations != 1:
        knobs["iterations_per_run"] = iterations
    origin = value["model"].get("suite_name")
    if isinstance(origin, str) and origin:
        knobs["origin"] = origin
    test = text(experiment.get("test"))
    return Benchmark(
        "PyTorch/XLA benchmark",
        _MODES.get(test, test) or None,
        text(experiment.get("dtype")) or None,
        extra_info={
            "device": text(experiment.get("accelerator")),
            "arch": text(experiment.get("accelerator_model")),
            "knobs": knobs,
        },
    )


def _model(value: dict[str, Any]) -> Model:
    """Without dynamo it is XLA's lazy tensors that run, torchax, or nothing but eager."""
    experiment = value["experiment"]
    plain = "xla" if experiment.get("xla") else "torch_xla2" if experiment.get("torch_xla2") else "eager"
    return Model(value["model"]["model_name"], "OSS model", text(experiment.get("dynamo")) or plain)


def _spelled(name: str) -> str:
    """The documentation writes ExecutionTime, the runner ExecuteTime."""
    return name.replace("xla_ExecutionTime_", "xla_ExecuteTime_")


def _timestamp(value: Any) -> float | None:
    return number(value) if isinstance(value, str) else finite(value)


def _measured(item: Item, name: str, values: Any, record: Record) -> Iterator[Placed]:
    """The records of one metric: a list of numbers is one, a list of maps one for each number inside."""
    place = f"{item.pointer}/metrics/{name}"
    repeats = values if isinstance(values, list) else [values]
    leaves: dict[str, list[float]] = {}
    for repeat in repeats:
        wrong = _collect(repeat, name, leaves, _MAX_DEPTH)
        if wrong:
            yield Placed(None, place, item.line, fault=Fault(place, wrong, item.line))
            return
    if not leaves:
        empty = not repeats or all(repeat is None for repeat in repeats)
        yield Placed(None, place, item.line, skip=reasons.NULL_VALUE if empty else reasons.NO_NUMBER_INSIDE)
    for leaf, samples in leaves.items():
        metric = Metric(shortened(leaf), [*samples])  # a graph break is named after its whole reason
        yield Placed(
            Record(record.benchmark, record.model, metric, timestamp=record.timestamp), place, item.line
        )


def _collect(value: Any, name: str, leaves: dict[str, list[float]], depth: int) -> str:
    """Adds the numbers inside; answers what is wrong with them, '' where nothing is."""
    if value is None:
        return ""
    if isinstance(value, dict) and depth > 0:
        return next(
            filter(None, (_collect(item, f"{name}.{key}", leaves, depth - 1) for key, item in value.items())),
            "",
        )
    sample = finite(value)
    if sample is None:
        return f"{repr(value)[:60]} is not a number"
    leaves.setdefault(name, []).append(sample)
    return ""
