"""A host delivers results of its claimed task and of nothing else, whatever its benchmarks wrote."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.ingest import Receipt, deliveries
from hud.models import Accelerator, Host, Measurement, Task
from runner.formats import reasons
from runner.formats.errors import BadUpload
from runner.schema.suite import IDENTITY, TaskSpec
from runner.schema.tasks import Selection, plan
from runner.suites import SUITES
from tests.support.claims import claim, request
from tests.support.factories import create_accelerator, create_run, create_task
from tests.support.records import as_lines, task_record

pytestmark = pytest.mark.django_db


@pytest.fixture
def task(accelerator: Accelerator) -> Task:
    request()
    return claim(accelerator)


def record(task: Task, **over: Any) -> dict[str, Any]:
    return task_record(TaskSpec.from_json(task.spec), **over)


def deliver(task: Task, body: bytes) -> Receipt:
    assert task.token
    assert task.accelerator
    return deliveries.take_results(uid=task.uid, token=task.token, host=task.accelerator.host, body=body)


def changed(good: dict[str, Any], part: str, **over: Any) -> dict[str, Any]:
    return {**good, part: {**good[part], **over}}


def with_info(good: dict[str, Any], **over: Any) -> dict[str, Any]:
    return changed(good, "benchmark", extra_info={**good["benchmark"]["extra_info"], **over})


def test_only_the_task_s_own_identity_is_stored(task: Task, client: Client) -> None:
    good = record(task)
    stored: dict[str, Any] = {
        "suite": "timm",
        "case": "x",
        "metric": "speedup",
        "knobs": {},
        "mode": "inference",
    }
    stored |= {"dtype": "int8", "backend": "eager", "device": "cuda", "arch": "h200", "dynamic": False}
    forged = [
        changed(good, "model", origins=["timm"]),
        changed(good, "model", name="gemv"),
        changed(good, "model", backend="eager"),
        changed(good, "benchmark", mode="training"),
        changed(good, "benchmark", dtype="int8"),
        changed(good, "benchmark", name="TorchInductor"),
        with_info(good, device="cuda"),
        with_info(good, dynamic=True),
        with_info(good, knobs={"D": 4097}),
        with_info(good, knobs={"D": 256.0}),
        with_info(good, knobs={}),
        with_info(good, hud=stored),
        {**good, "timestamp": time.time() - 3600},
        {**good, "timestamp": time.time() + 3600},
        {**good, "timestamp": 4102444800},
        {**good, "timestamp": 1e300},
    ]
    claimed_elsewhere = with_info(
        {**good, "runners": [{"name": "h200-c", "type": "NVIDIA H200"}], "timestamp": time.time()},
        arch="NVIDIA H200",
    )
    receipt = deliver(task, as_lines(*forged, claimed_elsewhere))
    assert (receipt.stored, receipt.run_ids) == (1, [task.run_id])
    assert sorted(item["line"] for item in receipt.skipped) == list(range(1, len(forged) + 1))
    measurement = Measurement.objects.get()
    experiment = measurement.series.experiment
    assert (experiment.suite, experiment.case, experiment.arch) == ("micro", "layer_norm", "cpu-x86_64")
    assert (experiment.device, experiment.knobs) == ("cpu", {"D": 256})
    assert (measurement.run.host_name, measurement.order_time) == ("h1", measurement.run.order_time)
    host = Host.objects.get()
    refused = [item for item in receipt.skipped if item["reason"].startswith(reasons.OTHER_TASK)]
    assert (
        host.refused_results == len(refused) == len(forged) - 1
    )  # one is no record: no calendar has its time
    assert host.refused_reason.startswith(f"run {task.run_id}: ")
    (row,) = client.get("/hosts.json").json()["items"]
    assert row["refused_results"] == host.refused_results
    assert host.refused_reason in client.get("/hosts/").content.decode().replace("&#x27;", "'")


def test_what_the_host_marked_is_counted_too(task: Task) -> None:
    good = record(task)
    marked = changed(good, "metric", extra_info={"unexpected": "its case is 'x'"})
    receipt = deliver(task, as_lines(marked, good))
    assert (receipt.stored, [item["reason"] for item in receipt.skipped]) == (1, [reasons.UNEXPECTED])
    assert Host.objects.get().refused_results == 1


@pytest.mark.parametrize(
    ("skew_s", "off_s", "stored"),
    [
        *((0, 0, 1), (0, -60, 1), (0, -3600, 0), (0, 3600, 0)),
        *((-86400, -86400, 1), (86400, 86400, 1), (-86400, -2 * 86400, 0)),
        (86400, 0, 1),  # a clock that was set right after the last heartbeat
        *((-1e300, -3600, 1), (1e300, 3600, 1)),  # clocks that no machine has
    ],
)
def test_the_time_of_a_result_is_within_the_lease(
    task: Task, skew_s: float, off_s: float, stored: int
) -> None:
    Host.objects.update(clock_skew_s=skew_s)
    assert deliver(task, as_lines(record(task, timestamp=time.time() + off_s))).stored == stored


@pytest.mark.parametrize(("off_s", "stored"), [(0, 1), (7200, 1), (-7200, 0), (4 * 7200, 0)])
def test_a_clock_of_ours_that_went_back_refuses_no_result_of_the_task(
    task: Task, off_s: float, stored: int
) -> None:
    Task.objects.update(started=timezone.now() + timedelta(hours=2))
    assert deliver(task, as_lines(record(task, timestamp=time.time() + off_s))).stored == stored


def test_a_late_delivery_is_taken_while_the_lease_lasts(task: Task) -> None:
    Task.objects.update(started=timezone.now() - timedelta(days=3))
    measured = time.time() - 2 * 86400
    assert deliver(task, as_lines(record(task, timestamp=measured))).stored == 1


def test_every_suite_may_report_what_it_expects(accelerator: Accelerator) -> None:
    """Also the experiments that a task expands to: sizes and their mean, operators and their calls."""
    for suite in (suite for suite in SUITES.values() if suite.cases):
        gpu = create_accelerator(arch="h200", name="cuda:0", suites=[suite.name])
        spec = plan(Selection(suite.name, cases=(suite.cases[0].name,), device="cuda"))[0]
        row = create_task(create_run("running"), spec=spec, state="running", accelerator=gpu)
        binding = deliveries.Binding(row)
        assert binding.experiments
        for one in binding.experiments:
            values = [spec.suite, one.case, spec.mode, spec.dtype, one.backend, spec.device]
            found = dict(zip(IDENTITY, [*values, spec.dynamic, one.knobs], strict=True))
            assert suite.problem_of(found, spec, binding.experiments) == ""
            for name in IDENTITY[:-1]:
                assert suite.problem_of({**found, name: "other"}, spec, binding.experiments)
            assert suite.problem_of({**found, "knobs": {"x": 1}}, spec, binding.experiments)
        Task.objects.all().delete()


@pytest.mark.parametrize(
    ("asked", "knobs", "fits"),
    [
        ({}, {"inputs": "huggingface"}, True),
        ({}, {"inputs": "huggingface", "shape": "f16(64x768)#1a2b3c4d"}, True),
        ({}, {"inputs": "huggingface", "shape": "anything"}, False),
        ({}, {"inputs": "timm"}, False),
        ({}, {}, False),
        ({"inputs": "own"}, {"inputs": "own-1a2b3c4d"}, True),
        ({"inputs": "own"}, {"inputs": "huggingface"}, False),
        ({"inputs": "own"}, {}, False),
        ({"shape": "a#1a2b3c4d"}, {"inputs": "huggingface", "shape": "a#1a2b3c4d"}, True),
        ({"shape": "a#1a2b3c4d"}, {"inputs": "huggingface", "shape": "b#1a2b3c4d"}, False),
    ],
)
def test_calls_of_an_operator_and_its_inputs(asked: Any, knobs: Any, fits: bool) -> None:
    suite = SUITES["operators"]
    spec = TaskSpec("operators", "aten.mm.default", "inference", "float16", "inductor", "cuda", knobs=asked)
    found = dict(zip(IDENTITY, [*list(spec.to_json().values())[:6], False, knobs], strict=True))
    for backend in ("inductor", "eager"):
        problem = suite.problem_of({**found, "backend": backend}, spec, suite.expected(spec, {}))
        assert (problem == "") is fits
    assert suite.problem_of({**found, "case": "aten.bmm.default"}, spec, suite.expected(spec, {}))


@pytest.mark.parametrize(
    "line",
    [
        b'{"benchmark": {"name": NaN}}',
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'"' + b"x" * 2_000_000 + b'"',
        b"\xff\xfe",
        b'{"metric": {"name": "a"}, "metric": {"name": "b"}}',
    ],
)
def test_a_hostile_line_costs_no_other_line(task: Task, line: bytes) -> None:
    receipt = deliver(task, line + b"\n" + as_lines(record(task)))
    assert receipt.stored == 1
    assert receipt.skipped


@pytest.mark.parametrize(
    "body", [b"{}\n" * 1_000_000, b"[" + b"0," * 2_000_000 + b"0]", b"[" * 100_000, b"\0"]
)
def test_a_hostile_body_is_refused_whole(task: Task, body: bytes) -> None:
    with pytest.raises(BadUpload) as caught:
        deliver(task, body)
    assert len(json.dumps([fault.to_json() for fault in caught.value.faults])) < 10_000
    assert not Measurement.objects.exists()
    assert deliver(task, as_lines(record(task))).stored == 1
