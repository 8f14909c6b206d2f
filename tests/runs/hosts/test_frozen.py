"""A run keeps the interpreters that it began with; a task that meets another one fails."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from hud.ingest import Receipt, deliveries
from hud.models import Accelerator, Host, Measurement, Run, RunRequest, State, Task
from hud.runs import tasks
from runner.schema.protocol import CHANGED_INTERPRETER, Fingerprint
from runner.schema.suite import TaskSpec
from tests.support.claims import attach, end, request
from tests.support.records import as_lines, task_record

pytestmark = pytest.mark.django_db

OLD = Fingerprint("2.14.0.dev20261101", "a" * 40, "3.6.0", "1" * 16)
NEW = Fingerprint("2.14.0.dev20261102", "b" * 40, "3.6.0", "2" * 16)


def claim(accelerator: Accelerator, **found: Fingerprint) -> Task | None:
    return tasks.claim(accelerator=accelerator, nonce=uuid.uuid4().hex, fingerprints=found)


def deliver(task: Task, of: Fingerprint, side: str = "") -> Receipt:
    record = task_record(TaskSpec.from_json(task.spec))
    record["dependencies"] = {
        "torch": {"version": of.torch, "sha": of.torch_git},
        "triton": {"version": of.triton},
    }
    if side:
        pair = {"number": task.repeat, "side": side, "base": "default", "new": "default"}
        record["runners"] = [{**record["runners"][0], "extra_info": {"pair": pair}}]
    assert task.token
    assert task.accelerator
    return deliveries.take_results(
        uid=task.uid, token=task.token, host=task.accelerator.host, body=as_lines(record)
    )


def test_a_changed_interpreter_ends_the_rest_of_an_ab_run(accelerator: Accelerator, client: Client) -> None:
    run = request(repeats=5, interpreter="default", base_interpreter="default")
    first = claim(accelerator, default=OLD)
    assert first
    for side in ("base", "new"):
        assert deliver(first, OLD, side).stored == 1
    end(first, accelerator)
    assert claim(accelerator, default=NEW) is None
    run.refresh_from_db()
    assert run.state == State.FAILED
    others = Task.objects.filter(run=run).exclude(pk=first.pk)
    assert set(others.values_list("state", "status", "code")) == {("done", "failed", CHANGED_INTERPRETER)}
    for said in (OLD.torch, NEW.torch, OLD.packages, NEW.packages):
        assert said in run.reason
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert OLD.torch in page
    assert NEW.torch in page


def test_what_another_torch_measured_is_none_of_the_run(accelerator: Accelerator) -> None:
    """Torch was replaced between the claim and the start of the second side."""
    request(repeats=5, interpreter="default", base_interpreter="default")
    task = claim(accelerator, default=OLD)
    assert task
    assert deliver(task, OLD, "base").stored == 1
    refused = deliver(task, NEW, "new")
    assert (refused.stored, len(refused.skipped)) == (0, 1)
    assert set(Measurement.objects.values_list("side", flat=True)) == {0}


def test_only_the_interpreters_of_the_run_count(accelerator: Accelerator) -> None:
    request(("layer_norm", "gemv"))
    first = claim(accelerator, default=OLD, other=OLD)
    assert first
    end(first, accelerator)
    assert claim(accelerator, default=OLD, other=NEW)


def test_other_packages_of_the_same_torch_are_another_interpreter(accelerator: Accelerator) -> None:
    request(("layer_norm", "gemv"))
    first = claim(accelerator, default=OLD)
    assert first
    end(first, accelerator)
    assert claim(accelerator, default=replace(OLD, packages="3" * 16)) is None
    assert set(Task.objects.exclude(pk=first.pk).values_list("code", flat=True)) == {CHANGED_INTERPRETER}


def beats(accelerator: Accelerator, of: Fingerprint) -> None:
    """The host says this in its heartbeat."""
    accelerator.host.facts = {"pythons": {"default": {"fingerprint": vars(of)}}}
    accelerator.host.save()


def test_another_host_helps_only_with_the_same_torch(accelerator: Accelerator) -> None:
    """A host that would fail every task must not take them all from one that would not."""
    run = request(("layer_norm", "gemv", "gather_gemv"))
    other = attach("h2")
    assert claim(accelerator, default=OLD)
    beats(other, NEW)
    assert claim(other, default=NEW) is None
    assert not Task.objects.filter(run=run, state="done").exists()
    same = replace(OLD, packages=NEW.packages)  # its installer wrote other files
    beats(other, same)
    assert claim(other, default=same)


def test_where_the_first_host_is_gone_the_sentence_names_both(accelerator: Accelerator) -> None:
    run = request(("layer_norm", "gemv"))
    other = attach("h2")
    beats(other, NEW)
    first = claim(accelerator, default=OLD)
    assert first
    Host.objects.filter(pk=accelerator.host_id).update(last_beat=timezone.now() - timedelta(hours=1))
    assert claim(other, default=NEW) is None
    assert set(Task.objects.exclude(pk=first.pk).values_list("code", flat=True)) == {CHANGED_INTERPRETER}
    assert all(f"{OLD}" in task.reason for task in run.tasks.exclude(pk=first.pk))


def test_a_run_that_is_handed_back_whole_begins_anew(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator, default=OLD)
    assert task
    end(task, accelerator, "not_run", code=tasks.HANDED_BACK)
    assert RunRequest.objects.get(run=run).fingerprints == {}
    assert claim(accelerator, default=NEW)


def test_an_interpreter_without_torch_is_not_kept(accelerator: Accelerator) -> None:
    request(("layer_norm", "gemv"))
    first = claim(accelerator, default=Fingerprint(packages="1" * 16))
    assert first
    end(first, accelerator, "failed")
    assert claim(accelerator, default=OLD)


def test_an_older_runner_says_nothing_and_gets_its_tasks(accelerator: Accelerator) -> None:
    request(("layer_norm", "gemv"))
    first = claim(accelerator)
    assert first
    end(first, accelerator)
    assert claim(accelerator)
    assert Run.objects.get().state == State.RUNNING
