"""Deliveries of a host: results, log and artifacts; each may be repeated."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from hud.ingest import deliveries
from hud.models import Accelerator, Compilation, Measurement, Task
from hud.problems import Problem
from hud.runs import logs
from runner.schema.suite import TaskSpec
from tests.support.claims import claim, end, request
from tests.support.records import as_lines, task_record

pytestmark = pytest.mark.django_db


def measured(task: Task, value: float) -> dict[str, Any]:
    metric = {"name": "speedup", "benchmark_values": [value]}
    return task_record(TaskSpec.from_json(task.spec), metric=metric)


def test_results_are_stored_once_and_a_later_attempt_replaces_them(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator)
    assert task.token

    token = task.token

    def deliver(value: float) -> None:
        body = as_lines(measured(task, value))
        deliveries.take_results(uid=task.uid, token=token, host=accelerator.host, body=body)

    deliver(1.0)
    deliver(1.0)
    assert Measurement.objects.get().value == 1.0
    deliver(2.0)
    measurement = Measurement.objects.get()
    assert (measurement.value, measurement.run_id) == (2.0, run.pk)


def test_repeats_are_processes_of_one_run(accelerator: Accelerator) -> None:
    run = request(repeats=3)
    for value in (1.0, 2.0, 3.0):
        task = claim(accelerator, uuid.uuid4().hex)
        assert task.token
        body = as_lines(measured(task, value))
        deliveries.take_results(uid=task.uid, token=task.token, host=accelerator.host, body=body)
        end(task, accelerator)
    points = Measurement.objects.filter(run=run).order_by("repeat")
    assert [(point.repeat, point.value) for point in points] == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_a_compilation_is_that_of_its_task_whatever_the_record_says(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator)
    assert task.token
    for compiled, warned in (({"kernels": "none"}, True), ({"graph_breaks": [{"reason": "print"}]}, False)):
        said = {"compilation": 7, "compiled": compiled}
        metric = {"name": "kernel_count", "benchmark_values": [3], "extra_info": said}
        body = as_lines(task_record(TaskSpec.from_json(task.spec), metric=metric))
        receipt = deliveries.take_results(uid=task.uid, token=task.token, host=accelerator.host, body=body)
        assert (receipt.stored, receipt.skipped, bool(receipt.warnings)) == (1, [], warned)
    (found,) = Compilation.objects.all()
    assert (found.run_id, found.number, found.graph_breaks[0]["reason"]) == (run.pk, 0, "print")
    assert Measurement.objects.get().compilation == 0


def test_a_repeated_log_piece_changes_nothing(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    assert task.token
    keys: dict[str, Any] = {"uid": task.uid, "token": task.token, "host": accelerator.host}
    assert logs.append(**keys, offset=0, data=b"hello ") == 6
    assert logs.append(**keys, offset=0, data=b"hello world") == 11
    assert logs.append(**keys, offset=0, data=b"hello") == 11
    with pytest.raises(Problem) as caught:
        logs.append(**keys, offset=12, data=b"!")
    assert (caught.value.status, caught.value.extra) == (409, {"code": "log_offset", "size": 11})
    task.refresh_from_db()
    assert logs.read(task, 6, 100) == b"world"
    for kind, digest in (("../etc", ""), ("trace", "0")):
        with pytest.raises(Problem) as caught:
            logs.keep_artifact(**keys, kind=kind, sha256=digest, data=b"x")
        assert caught.value.status == 422
    kept = logs.keep_artifact(**keys, kind="trace", data=b"x", sha256="")
    assert logs.keep_artifact(**keys, kind="trace", data=b"x", sha256="").pk == kept.pk
