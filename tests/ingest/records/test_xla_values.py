"""PyTorch/XLA's repeats as one value: the first run compiles. Cells without a value, on two runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from hud.ingest import ingest
from hud.models import Measurement, Stream
from hud.pages.suite.view import matrix_of
from runner.cli import tables
from runner.formats.parameters import Parameters
from runner.schema.statistics import spread_of, value_of
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from tests.support.observed import observe

METRICS = {
    "total_time": [9.0, 1.0, 3.0],
    "per_iter_time": [4.5, 0.5],
    "trace_per_iter_time": [2.0],
    "xla_CompileTime_time_s": [3.0, 0.0, 0.25],
    "xla_CompileTime_number": [8.0, 0.0, 1.0],
    "xla_ExecuteTime_time_s": [0.5, 0.25, 0.25],
}


def line(metrics: dict[str, Any], *, case: str = "resnet18", **said: Any) -> dict[str, Any]:
    """A line of results.jsonl; keywords with the names of its axes replace those."""
    axes = {"accelerator": "cpu", "accelerator_model": "AMD EPYC", "xla": "PJRT", "dynamo": "openxla"}
    experiment = {
        **axes,
        "test": "eval",
        "batch_size": 4,
        **{name: said.pop(name) for name in said.keys() & axes},
    }
    outcome = {"timestamp": 1755000000, "verification_code": "VERIFIER_SKIPPED", **said}
    return {
        "model": {"suite_name": "dummy", "model_name": case},
        "experiment": experiment,
        "iterations_per_run": 1,
        "metrics": metrics,
        **outcome,
    }


def lines(*those: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, those)).encode()


def test_a_value_is_made_of_samples_by_its_rule() -> None:
    assert value_of([9.0, 1.0, 3.0, 2.0], "steady") == 2.0
    assert value_of([9.0], "steady") == 9.0
    assert value_of([9.0, 1.0, 3.0], "median") == 3.0
    assert value_of([0.5, 0.0, 0.25], "sum") == 0.75
    assert spread_of([9.0, 2.0, 2.0], "steady") == 0.0
    assert spread_of([9.0, 1.0, 3.0], "steady") > 0.7
    assert spread_of([9.0, 0.0, 0.0], "sum") == 0.0


def stored() -> dict[str, Measurement]:
    return {one.series.metric.name: one for one in Measurement.objects.select_related("series__metric")}


@pytest.mark.django_db
def test_the_first_run_compiles_and_is_no_part_of_the_steady_values(client: Client) -> None:
    ingest(lines(line(METRICS)), Parameters())
    found = stored()
    assert {name: one.value for name, one in found.items() if one.value is not None} == {
        "total_time": 2.0,
        "per_iter_time": 0.5,
        "trace_per_iter_time": 2.0,
        "xla_CompileTime_time_s": 3.25,
        "xla_CompileTime_number": 9.0,
        "xla_ExecuteTime_time_s": 0.25,
    }
    assert found["per_iter_time"].samples == METRICS["per_iter_time"], "all of them are kept"
    assert "of one run only" in (found["trace_per_iter_time"].note or "")
    assert [name for name, one in found.items() if one.note] == ["trace_per_iter_time"]
    text = client.get("/suites/xla/").content.decode()
    assert text.count('compilation and warm-up">first run</span>') == 1
    steady = client.get(f"/experiments/{found['per_iter_time'].series.experiment_id}/?metric=per_iter_time")
    assert "median without the first 0.5" in steady.content.decode()


def test_only_pytorch_xla_has_a_first_run() -> None:
    record = {
        "benchmark": {"name": "somebody's"},
        "model": {"name": "a"},
        "metric": {"name": "total_time", "benchmark_values": [9.0]},
    }
    assert observe(json.dumps(record)).measurements[0].message is None
    (least,) = observe(lines(line({"total_time": [9.0]}, verification_code=""))).measurements
    assert least.message


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({}, {}),
        ({"total_time": [], "per_iter_time": [None]}, {}),
        ({"dynamo_counters": [{}]}, {"verification_code": None}),
        ({}, {"verification_code": "VERIFIER_DIDNT_RUN"}),
        ({}, {"runner": {"status": "ok", "code": "fine", "without": ["total_time"]}}),
        ({"per_iter_time": []}, {"runner": {"check": {"status": "not_run"}}}),
    ],
)
def test_an_experiment_of_xla_without_a_value_was_not_run(
    metrics: dict[str, Any], said: dict[str, Any]
) -> None:
    found = {item.metric: item for item in observe(lines(line(metrics, **said))).measurements}
    total = found.pop("total_time")
    assert (total.status, total.code, total.samples) == ("not_run", "no_value", [])
    assert total.message == "its line has no value of it"
    assert {item.status for item in found.values()} <= {"not_run"}


def test_a_verification_alone_is_no_missing_time() -> None:
    (item,) = observe(lines(line({}, verification_code="PASS"))).measurements
    assert (item.metric, item.status, item.code) == ("verification_code", "ok", "PASS")


@pytest.mark.django_db
def test_one_line_of_the_comparison_is_one_runtime(client: Client) -> None:
    """Eager and inductor run without XLA; what dynamo was asked for on an XLA device is another thing."""
    times = {"PJRT": 0.2, "XRT": 0.4}
    those = [
        line({"per_iter_time": [9, time_s]}, xla=xla, verification_code="") for xla, time_s in times.items()
    ]
    for dynamo, time_s in (("eager", 0.1), ("inductor", 0.3)):
        those.append(line({"per_iter_time": [9, time_s]}, dynamo=dynamo, xla=None))
        those.append(line({"per_iter_time": [9, 7]}, dynamo=dynamo))
    # another kind of device, whose arch is not known either
    nowhere = {"accelerator_model": "", "case": "a"}
    those.append(line({"per_iter_time": [9, 1]}, accelerator="tpu", **nowhere))
    those.append(line({"per_iter_time": [9, 1]}, accelerator="cuda", dynamo="inductor", xla=None, **nowhere))
    alone = [{"dynamo": dynamo, "xla": xla} for dynamo, xla in (("inductor", None), ("openxla", "PJRT"))]
    those += [line({"per_iter_time": [9]}, case="one_run", **backend) for backend in alone]
    ingest(lines(*those), Parameters())
    part = matrix_of(Stream.objects.get(name="import"), "xla")
    assert part
    assert {one.case for one in part["comparisons"]} == {"resnet18"}
    found = {one.runtime: one for one in part["comparisons"]}
    found_s = {
        name: {backend: result[1] for backend, result in one.results.items()} for name, one in found.items()
    }
    assert found_s == {
        name: {"eager": 0.1, "inductor": 0.3, "openxla": time_s} for name, time_s in times.items()
    }
    assert "<td>XRT</td>" in client.get("/suites/xla/").content.decode()


def test_the_commands_overview_keeps_eager_on_xla_apart(tmp_path: Path) -> None:
    asked = [
        TaskSpec("xla", "dummy", "inference", "float32", backend, "cpu")
        for backend in ("eager", "xla", "openxla")
    ]
    text = tables.overview([TaskResult(one, TaskOutcome("ok"), tmp_path, []) for one in asked], asked)
    rows = [row.split() for row in text.splitlines()[1:]]
    assert [row[3:] for row in rows] == [
        ["eager", "100%,", "1/1"],
        ["xla", "100%,", "1/1"],
        ["openxla", "100%,", "1/1"],
    ]


def test_the_commands_table_shows_the_steady_value(tmp_path: Path) -> None:
    (record,) = [
        {
            "benchmark": {"extra_info": {"device": "cpu", "knobs": {}}},
            "model": {"name": "dummy", "origins": ["xla"]},
            "metric": {
                "name": "per_iter_time",
                "benchmark_values": [9.0, 0.5],
                "extra_info": {"status": "ok"},
            },
        }
    ]
    task = TaskSpec("xla", "dummy", "inference", "float32", "eager", "cpu")
    assert "0.50000" in tables.results([TaskResult(task, TaskOutcome("ok"), tmp_path, [record])])
