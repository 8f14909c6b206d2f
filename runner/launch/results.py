"""The records that a task leaves in its folder (`results.jsonl`), read once it has ended. A benchmark is
arbitrary code and may write there too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.schema.outcome_records import Place, TaskOutcome, missing
from runner.schema.records import STATUSES, SUCCESS, UNEXPECTED, Environment, Json
from runner.schema.suite import Expected, TaskSpec
from runner.suites import suite_of
from runner.system import environment

FILE = "results.jsonl"
FOUND = "found.json"  # device and environment of a stage that got far enough to know them
NO_RECORDS = "foreign_results"  # the code of a task that wrote lines which are no records


@dataclass(frozen=True)
class Results:
    """Records of a task, and marked ones (`UNEXPECTED`) that do not belong to it. `problem` says what is
    wrong with the first line that is no record, or is ''."""

    records: list[dict[str, Json]] = field(default_factory=list)
    unexpected: list[dict[str, Json]] = field(default_factory=list)
    problem: str = ""


def read(data: bytes, task: TaskSpec, experiments: Sequence[Expected]) -> Results:
    """Read the lines of a task that has these experiments. A killed task may leave half a line at the end,
    which is ignored."""
    found, problem = Results(), ""
    half = data[data.rfind(b"\n") + 1 :]
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            record = json.loads(line)
            wrong = _wrong_part(record)
        except (ValueError, RecursionError):
            record, wrong = None, "" if line == half else "it is no JSON"
        if wrong:
            problem = problem or f"line {number} is no record: {wrong}"
        elif record is not None and (reason := suite_of(task.suite).problem_of(record, task, experiments)):
            info = {**(record["metric"].get("extra_info") or {}), UNEXPECTED: reason}
            found.unexpected.append({**record, "metric": {**record["metric"], "extra_info": info}})
        elif record is not None:
            found.records.append(record)
    return dataclasses.replace(found, problem=problem)


def complete(
    folder: Path, task: TaskSpec, outcome: TaskOutcome, python: str, variables: Mapping[str, str]
) -> tuple[TaskOutcome, Results]:
    """Read the file of a task that has ended; if it failed, add records of what it has not measured.
    `variables` were its environment.

    A line that is no record makes the task fail; its records stay. Only append to the file: it is delivered
    by offset.
    """
    suite = suite_of(task.suite)
    experiments = suite.expected(task, variables)
    try:
        found = read((folder / FILE).read_bytes(), task, experiments)
    except FileNotFoundError:
        found = Results()
    except OSError as error:
        found = Results(problem=f"{error.strerror}")
    if found.problem and outcome.status in SUCCESS:
        outcome = dataclasses.replace(outcome, status="failed", code=NO_RECORDS, reason=found.problem)
    if outcome.status in SUCCESS:
        return outcome, found
    added = missing(
        task,
        outcome,
        found.records,
        suite.expected_in_full(task, variables),
        place=lambda: _place(folder, task, python, variables),
    )
    if added:
        try:
            with (folder / FILE).open("ab+") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)  # a killed task may have left half a line
                file.write("".join(json.dumps(record) + "\n" for record in added).encode())
        except OSError as error:  # a full disk
            found = dataclasses.replace(found, problem=f"it cannot be completed: {error}")
    return outcome, dataclasses.replace(found, records=[*found.records, *added])


def _place(folder: Path, task: TaskSpec, python: str, variables: Mapping[str, str]) -> Place:
    """Return what a stage wrote of its place, else what the interpreter says without torch."""
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
    """Return which part of a v3 record is not what it has to be, or ''."""
    if not isinstance(record, dict):
        return "it is no object"
    benchmark, model, metric = (record.get(name) for name in ("benchmark", "model", "metric"))
    if not (isinstance(benchmark, dict) and isinstance(model, dict) and isinstance(metric, dict)):
        return "it lacks benchmark, model or metric"
    said, info = benchmark.get("extra_info"), metric.get("extra_info") or {}
    runners, dependencies = record.get("runners") or [{}], record.get("dependencies") or {}
    values = metric.get("benchmark_values")
    checks = {
        "benchmark/extra_info": isinstance(said, dict) and isinstance(said.get("knobs") or {}, dict),
        "benchmark/name": _is_name(benchmark.get("name")),
        "model/name": _is_name(model.get("name")),
        "metric/name": _is_name(metric.get("name")),
        "metric/extra_info": isinstance(info, dict) and info.get("status", "ok") in STATUSES,
        "metric/benchmark_values": values is None
        or (isinstance(values, list) and all(map(_is_finite, values))),
        "runners": isinstance(runners, list)
        and all(isinstance(one, dict) and isinstance(one.get("extra_info", {}), dict) for one in runners),
        "dependencies": isinstance(dependencies, dict)
        and all(isinstance(one, dict) for one in dependencies.values()),
        "timestamp": record.get("timestamp") is None or _is_finite(record["timestamp"]),
    }
    return next((f"{part} is not what it has to be" for part, well in checks.items() if not well), "")


def _is_name(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_finite(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
