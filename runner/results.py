"""The records that a task leaves in its folder (`results.jsonl`). A benchmark is arbitrary code and may write
there too: what is no record of its own task is not taken for one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runner import environment
from runner.catalog import TaskSpec
from runner.catalog.always import Always, always, operator_metrics, problem_of
from runner.catalog.missing import Place, missing
from runner.catalog.suites import operators
from runner.records import STATUSES, Environment
from runner.task_result import TaskOutcome

Json = Any

FILE = "results.jsonl"
FOUND = "found.json"  # device and environment, of a stage that came so far as to tell them
FOREIGN = "foreign_results"  # code of a task that wrote lines which are no records of its own
_NUMBERS = (int, float)


class Lines(NamedTuple):
    """What some lines hold: records of the task, and why the first other line is none; '' without one."""

    records: list[dict[str, Json]]
    problem: str


def read(data: bytes, task: TaskSpec, variables: Mapping[str, str] = os.environ) -> Lines:
    """The records of that task among lines. A killed task may leave half a line, which says nothing."""
    experiments = always(task, variables)
    records, problem = [], ""
    half = data[data.rfind(b"\n") + 1 :]
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            record = json.loads(line)
            wrong = _wrong_part(record) or problem_of(record, task, experiments)
        except (ValueError, RecursionError):
            wrong = "" if line == half else "it is no JSON"
            record = None
        if wrong:
            problem = problem or f"line {number} is no record of this task: {wrong}"
        elif record is not None:
            records.append(record)
    return Lines(records, problem)


def read_file(folder: Path, task: TaskSpec, variables: Mapping[str, str] = os.environ) -> Lines:
    """The same of a task's folder."""
    path = folder / FILE
    if path.is_file():
        return read(path.read_bytes(), task, variables)
    return Lines([], "it is no file" if path.exists() else "")


def complete(
    folder: Path, task: TaskSpec, end: TaskOutcome, python: str, variables: Mapping[str, str]
) -> None:
    """Adds records of what a task that did not end well has not measured; `variables` were its environment.
    Of one that wrote lines which are not its own, nothing there is to be believed. Raises OSError."""
    if end.code == FOREIGN and (folder / FILE).is_file():
        (folder / FILE).unlink()
    found = read_file(folder, task, variables).records

    def place() -> Place:
        return _place(folder, task, python, variables)

    added = missing(task, end, found, _experiments(task, variables), place=place)
    if added:
        _append(folder / FILE, "".join(json.dumps(record) + "\n" for record in added))


def _append(path: Path, lines: str) -> None:
    """In the place of the half line that a killed task may have left."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(lines.encode())


def _experiments(task: TaskSpec, variables: Mapping[str, str]) -> list[Always]:
    """With each recorded call, where the task is of operators."""
    experiments = always(task, variables)
    if task.suite != operators.SUITE.name or task.setting("shape"):
        return experiments
    from runner.suites.operators import chosen  # noqa: PLC0415 - reads shapes, for this suite alone

    calls = chosen(task, variables)
    found = [one for one in experiments if any(call.operator == one.case for call in calls)]
    metrics = operator_metrics(task)
    by_case = {one.case: one for one in found}
    for call in calls:
        one = by_case[call.operator]
        knobs = {**one.knobs, "shape": call.label}
        found.append(Always(one.case, one.backend, one.device, knobs, metrics))
    return found or experiments


def _place(folder: Path, task: TaskSpec, python: str, variables: Mapping[str, str]) -> Place:
    """As a stage told it, else as the interpreter says it without torch."""
    arch, found = "", None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads((folder / FOUND).read_bytes())
        arch, found = str(told["device"]["name"]), Environment(**told["environment"])
    if found is None:
        found = environment.asked(task.device, python, variables)
        arch = found.gpu if task.device == "cuda" else platform.machine()
    said = found.to_record_fields(variables.get("RUNNER_HOST") or platform.node())
    return Place(arch, said["runners"], said["dependencies"], time.time())


def _wrong_part(record: Json) -> str:
    """Which part of a v3 record is not what it has to be; '' where all are."""
    if not isinstance(record, dict):
        return "it is no object"
    benchmark, model, metric = (record.get(name) for name in ("benchmark", "model", "metric"))
    if not (isinstance(benchmark, dict) and isinstance(model, dict) and isinstance(metric, dict)):
        return "it lacks benchmark, model or metric"
    said, info = benchmark.get("extra_info"), metric.get("extra_info") or {}
    runners = record.get("runners") or [{}]
    values = metric.get("benchmark_values")
    checks = {
        "benchmark/extra_info": isinstance(said, dict) and isinstance(said.get("knobs") or {}, dict),
        "benchmark/name": _is_name(benchmark.get("name")),
        "model/name": _is_name(model.get("name")),
        "metric/name": _is_name(metric.get("name")),
        "metric/extra_info": isinstance(info, dict) and info.get("status", "ok") in STATUSES,
        "metric/benchmark_values": values is None
        or (isinstance(values, list) and all(map(_is_finite, values))),
        "runners": isinstance(runners, list) and all(map(_is_runner, runners)),
        "dependencies": _is_object_of_objects(record.get("dependencies") or {}),
        "timestamp": record.get("timestamp") is None or _is_finite(record["timestamp"]),
    }
    return next((f"{part} is not what it has to be" for part, well in checks.items() if not well), "")


def _is_name(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_finite(value: Json) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and math.isfinite(value)


def _is_runner(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("extra_info", {}), dict)


def _is_object_of_objects(value: Json) -> bool:
    return isinstance(value, dict) and all(isinstance(part, dict) for part in value.values())
