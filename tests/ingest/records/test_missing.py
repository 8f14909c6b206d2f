"""What a task that died has not measured: rows with a status, at the door, in series and in verdicts."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.models import STATUS_NAMES, Measurement, Run
from runner.cli.output import Output
from runner.formats.parameters import Parameters
from runner.launch import results
from runner.launch.launch import launch
from runner.schema.suite import TaskSpec
from runner.schema.tasks import Selection, TaskOutcome, TaskResult, missing, plan
from runner.suites import SUITES
from runner.system import machine
from runner.system.interpreters import Interpreter, environment_of
from tests.support.finished import expected
from tests.support.judgements import telling_points
from tests.support.records import task_record

MODEL = plan(Selection("huggingface", cases=["T5Small"], device="cpu", dtypes=["float32"]))[0]


def of_model(task: TaskSpec, name: str, values: Any = (1.5,), *, at: float = 1.7e9, **said: Any) -> Any:
    """A record of that task."""
    (experiment,) = expected(task)
    record = task_record(replace(task, knobs={}, device="cpu"), name, timestamp=at)
    record["benchmark"]["extra_info"]["knobs"] = dict(experiment.knobs)
    record["model"]["backend"] = experiment.backend
    record["metric"] = {"name": name, "extra_info": {"status": "ok", **said}}
    if values:
        record["metric"]["benchmark_values"] = list(values)
    return record


def line(task: TaskSpec, status: str, code: str, *records: Any) -> bytes:
    """Of a file of `--format ours`."""
    value = {
        "fingerprint": task.fingerprint(),
        "task": task.to_json(),
        "outcome": {"status": status, "code": code, "reason": "why", "seconds": 1.0},
        "records": list(records),
    }
    return json.dumps(value).encode() + b"\n"


def passed(task: TaskSpec, at: float) -> Any:
    return of_model(task, "accuracy", (), at=at, code="pass")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("suite", sorted(name for name, suite in SUITES.items() if suite.cases))
def test_every_task_of_every_suite_has_rows_for_all_it_measures(suite: str, device: str) -> None:
    for task in plan(Selection(suite, device=device)):
        experiments = expected(task)
        found = missing(task, TaskOutcome("crashed", "SIGSEGV", "why"), [], experiments)
        assert found
        assert len(found) == sum(len(one.metrics) for one in experiments)
        assert not missing(
            task, TaskOutcome("failed", "x", "why"), found, experiments
        )  # nothing is missing twice


def test_of_a_task_that_left_nothing_the_interpreter_tells_the_environment(tmp_path: Path) -> None:
    launch(MODEL, tmp_path, python="/nowhere/python", environment={"RUNNER_HOST": "here"})
    last = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert last["metric"]["extra_info"]["code"] == "no_interpreter"
    assert (last["runners"][0]["name"], last["runners"][0]["cpu_info"]) == ("here", machine.cpu_name())
    assert last["benchmark"]["extra_info"]["arch"] == platform.machine()
    assert last["dependencies"] == {}
    version = importlib.metadata.version("torch").partition("+")[0]
    assert environment_of("cpu", Interpreter(sys.executable)).torch.startswith(version)


def test_results_that_are_no_file_fail_the_task(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").mkdir()
    outcome, found = results.complete(tmp_path, MODEL, TaskOutcome("ok"), sys.executable, {})
    assert (outcome.status, outcome.code) == ("failed", "foreign_results")
    assert found.problem


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "code", "verdicts"),
    [("crashed", "SIGKILL", ["failed"]), ("timed_out", "timeout", ["failed"]), ("cancelled", "", [])],
)
@pytest.mark.parametrize("form", ["ours", "v3"])
def test_a_crash_is_a_point_with_a_verdict_and_a_cancel_is_none(
    status: str, code: str, verdicts: list[str], form: str, tmp_path: Path
) -> None:
    for day in range(1, 4):
        at = 1.7e9 + 86400.0 * day
        good = [passed(MODEL, at), of_model(MODEL, "speedup", at=at)]
        ingest(line(MODEL, "ok", "", *good), Parameters())
    records = [passed(MODEL, 1.7e9 + 86400.0 * 9)]
    records += missing(MODEL, TaskOutcome(status, code, "why"), records, expected(MODEL))
    path = tmp_path / "r.json"
    Output(path, form, suites=["huggingface"], resume=False).add(
        TaskResult(MODEL, TaskOutcome(status, code, "why"), tmp_path, records)
    )
    ingest(path.read_bytes(), Parameters())
    process_pending()
    series = Measurement.objects.filter(series__metric__name="speedup").order_by("order_time")
    last = series.last()
    assert last is not None
    assert (series.count(), last.value) == (4, None)
    assert STATUS_NAMES[last.status] == ("not_run" if status == "cancelled" else status)
    states = list(Run.objects.order_by("order_time").values_list("state", flat=True))
    assert states == [*["succeeded"] * 3, "failed" if status == "crashed" else status]
    judged = telling_points().filter(series__metric__name="speedup")
    assert [point.verdict for point in judged] == verdicts
