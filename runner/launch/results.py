"""The records that a task leaves in its folder (`results.jsonl`), read once it has ended. A benchmark is
arbitrary code and may write there too, whatever it likes and as much as it likes.
"""

import dataclasses
import io
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.formats.scalars import finite, is_deeper
from runner.schema.protocol import version
from runner.schema.records import STATUSES, SUCCESS, UNEXPECTED, Json
from runner.schema.suite import Expected, TaskSpec
from runner.schema.tasks import TaskOutcome, missing
from runner.suites import suite_of
from runner.system import interpreters
from runner.system.task_files import MAX_RESULTS_BYTES, open_file

FILE = "results.jsonl"
NO_RECORDS = "foreign_results"  # the code of a task that wrote lines which are no records
MAX_LINE_BYTES = 4 * 2**20  # 100,000 samples take 2 MiB
MAX_DEPTH = 16  # as in an upload
_MAX_REFUSED = 1000  # lines that are no records, or none of the task; the rest is not read


@dataclass(frozen=True)
class Results:
    """Records of a task, and marked ones (`UNEXPECTED`) that do not belong to it. `problem` says what is
    wrong with the first line that is no record or is not read, or is ''."""

    records: list[dict[str, Json]] = field(default_factory=list)
    unexpected: list[dict[str, Json]] = field(default_factory=list)
    problem: str = ""


def read(data: bytes, task: TaskSpec, experiments: Sequence[Expected]) -> Results:
    """Read the lines of a task that has these experiments. A killed task may leave half a line at the end,
    which is ignored. Reading stops after 1,000 lines that are refused."""
    records: list[dict[str, Json]] = []
    unexpected: list[dict[str, Json]] = []
    problem, bad = "", 0
    suite = suite_of(task.suite)
    for number, line in enumerate(io.BytesIO(data), start=1):
        record, wrong = _record(line)
        if wrong and record is None and not line.endswith(b"\n"):
            break
        if wrong:
            bad += 1
            problem = problem or f"line {number} is no record: {wrong}"
        elif reason := suite.problem_of(identity(record), task, experiments):
            info = {**(record["metric"].get("extra_info") or {}), UNEXPECTED: reason}
            unexpected.append({**record, "metric": {**record["metric"], "extra_info": info}})
        else:
            records.append(record)
        if bad + len(unexpected) >= _MAX_REFUSED:
            problem = problem or f"{_MAX_REFUSED} lines are none of this task"
            break
    return Results(records, unexpected, problem)


def _record(line: bytes) -> tuple[Json, str]:
    """Return the JSON of a line, None for none, and why it is no record, or ''."""
    if len(line) > MAX_LINE_BYTES:
        return None, f"it is longer than {MAX_LINE_BYTES} bytes"
    try:
        record = json.loads(line, parse_constant=_refuse)
        wrong = _wrong_part(record)
    except (ValueError, RecursionError):
        return None, "it is no JSON"
    if not wrong and is_deeper(record, MAX_DEPTH):
        wrong = f"it is nested deeper than {MAX_DEPTH}"
    if not wrong and b"\\u0000" in line:
        wrong = "it holds a NUL character"
    return record, wrong


def _refuse(constant: str) -> None:
    """Raise ValueError for NaN and the like, which are no JSON."""
    raise ValueError(constant)


def identity(record: Mapping[str, Json]) -> dict[str, Json]:
    """Return the identity of a well-formed record, as `Suite.problem_of` takes it."""
    benchmark, model = record["benchmark"], record["model"]
    info, origins = benchmark["extra_info"], model.get("origins")
    return {
        "suite": origins[0] if isinstance(origins, list) and len(origins) == 1 else origins,
        "case": model["name"],
        "mode": benchmark.get("mode"),
        "dtype": benchmark.get("dtype"),
        "backend": model.get("backend"),
        "device": info.get("device"),
        "dynamic": bool(info.get("dynamic")),
        "knobs": info.get("knobs") or {},
    }


def complete(
    folder: Path, task: TaskSpec, outcome: TaskOutcome, python: str, variables: Mapping[str, str]
) -> tuple[TaskOutcome, Results]:
    """Read the file of a task that has ended; if it failed, add records of what it has not measured.
    `variables` were its environment.

    A line that is no record makes the task fail, and so does a file that is too large or is none; its records
    stay. Only append to the file: it is delivered by offset.
    """
    suite = suite_of(task.suite)
    experiments = suite.expected(task, variables)
    try:
        with open_file(folder / FILE) as file:
            results = read(file.read(MAX_RESULTS_BYTES), task, experiments)
            if not results.problem and file.read(1):
                results = dataclasses.replace(results, problem=f"it is larger than {MAX_RESULTS_BYTES} bytes")
    except FileNotFoundError:
        results = Results()
    except OSError as error:
        results = Results(problem=f"{error.strerror}")
    if results.problem and outcome.status in SUCCESS:
        outcome = dataclasses.replace(outcome, status="failed", code=NO_RECORDS, reason=results.problem)
    if outcome.status in SUCCESS:
        return outcome, results
    added = missing(
        task,
        outcome,
        results.records,
        suite.expected_in_full(task, variables),
        place=lambda: _place(task, python, variables),
        variables=variables,
    )
    if added:
        try:
            _append(folder / FILE, "".join(json.dumps(record) + "\n" for record in added))
        except OSError as error:  # a full disk
            results = dataclasses.replace(results, problem=f"it cannot be completed: {error}")
    return outcome, dataclasses.replace(results, records=[*results.records, *added])


def _append(path: Path, lines: str) -> None:
    """Write in the place of the half line that a killed task may have left. What a benchmark put in the place
    of the file is removed, and so is what follows the part that is read."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read(MAX_RESULTS_BYTES - len(lines)).rfind(b"\n") + 1)
        file.write(lines.encode())


def _place(task: TaskSpec, python: str, variables: Mapping[str, str]) -> dict[str, Json]:
    """Return what the interpreter says of its place without torch."""
    environment = interpreters.environment_of(task.device, interpreters.Interpreter(python, variables))
    arch = environment.gpu if task.device == "cuda" else platform.machine()
    host = variables.get("RUNNER_HOST") or platform.node()
    return {"arch": arch, **environment.to_record_fields(host, version()), "timestamp": time.time()}


def _wrong_part(record: Json) -> str:
    """Return which part of a v3 record is not what it has to be, or ''."""
    if not isinstance(record, dict):
        return "it is no object"
    benchmark, model, metric = (record.get(name) for name in ("benchmark", "model", "metric"))
    if not (isinstance(benchmark, dict) and isinstance(model, dict) and isinstance(metric, dict)):
        return "it lacks benchmark, model or metric"
    extra, info = benchmark.get("extra_info"), metric.get("extra_info") or {}
    runners, dependencies = record.get("runners") or [{}], record.get("dependencies") or {}
    values = metric.get("benchmark_values")
    checks = {
        "benchmark/extra_info": isinstance(extra, dict) and isinstance(extra.get("knobs") or {}, dict),
        "benchmark/name": _is_name(benchmark.get("name")),
        "model/name": _is_name(model.get("name")),
        "metric/name": _is_name(metric.get("name")),
        "metric/extra_info": isinstance(info, dict) and info.get("status", "ok") in STATUSES,
        "metric/benchmark_values": values is None
        or (isinstance(values, list) and None not in map(finite, values)),
        "runners": isinstance(runners, list)
        and all(isinstance(one, dict) and isinstance(one.get("extra_info", {}), dict) for one in runners),
        "dependencies": isinstance(dependencies, dict)
        and all(isinstance(dependency, dict) for dependency in dependencies.values()),
        "timestamp": record.get("timestamp") is None or finite(record["timestamp"]) is not None,
    }
    return next((f"{part} is not what it has to be" for part, well in checks.items() if not well), "")


def _is_name(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())
