"""Tasks: claimed once, ended once, whoever claims, ends and cancels at the same time."""

from __future__ import annotations

import threading
import uuid
from functools import partial

import pytest

from hud.models import Accelerator, Audit, Run, State, Task
from hud.problems import Problem
from hud.runs import queue, tasks
from tests.support.claims import attach, claim, end, in_thread, request

pytestmark = pytest.mark.django_db


def test_a_task_is_claimed_once_and_a_repeated_claim_gets_it_again(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator, "one")
    assert claim(accelerator, "one").pk == task.pk
    assert tasks.claim(accelerator=accelerator, nonce="two") is None, "one task at a time"
    run.refresh_from_db()
    assert (run.state, run.host_name) == (State.RUNNING, "h1")
    assert run.started


def test_a_run_from_request_to_success(accelerator: Accelerator) -> None:
    run = request(("layer_norm", "mlp_layer_norm_gelu"))
    for _ in range(2):
        end(claim(accelerator, uuid.uuid4().hex), accelerator)
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED
    assert run.finished
    assert tasks.claim(accelerator=accelerator, nonce="x") is None
    assert list(Audit.objects.values_list("action", flat=True)) == ["run.request"]


def test_finish_is_idempotent_and_terminal_states_never_change(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator)
    assert end(task, accelerator).state == Task.State.DONE
    assert end(task, accelerator, "failed").status == "ok", "the first word counts"
    tasks.cancel(run=run, who="late")
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("timed_out", State.TIMED_OUT),
        ("crashed", State.FAILED),
        ("oom", State.FAILED),
        ("wrong", State.FAILED),
        ("cannot_tell", State.SUCCEEDED),
    ],
)
def test_a_runs_state_follows_from_its_tasks(accelerator: Accelerator, status: str, state: str) -> None:
    run = request()
    end(claim(accelerator), accelerator, status, reason="because")
    run.refresh_from_db()
    assert run.state == state
    assert Task.objects.get().attempt == 1, "only infrastructure is tried again"


def test_cancel_ends_queued_tasks_and_asks_the_running_one_to_stop(accelerator: Accelerator) -> None:
    run = request(("layer_norm", "mlp_layer_norm_gelu"))
    task = claim(accelerator)
    tasks.cancel(run=run, who="me")
    tasks.cancel(run=run, who="me")
    assert Task.objects.get(position=1).state == Task.State.CANCELLED
    assert tasks.report(task=task, progress={})
    end(task, accelerator, "cancelled")
    run.refresh_from_db()
    assert (run.state, run.reason) == (State.CANCELLED, "cancelled by me")
    assert Audit.objects.filter(action="run.cancel").count() == 1


def test_cancelling_a_queued_run_ends_it(accelerator: Accelerator) -> None:
    run = request()
    tasks.cancel(run=run, who="me")
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    assert tasks.claim(accelerator=accelerator, nonce="x") is None


def test_an_interactive_run_goes_ahead_in_the_queue(accelerator: Accelerator) -> None:
    nightly = request(("layer_norm", "mlp_layer_norm_gelu"))
    running = claim(accelerator)
    watched = request(run_class="person")
    later = request()
    nightly.refresh_from_db()
    positions = {line.run: line.position for line in queue.read().lines}
    assert positions[nightly.pk] is None
    assert positions[watched.pk] == 1, "behind what runs now"
    assert positions[later.pk] == 2
    end(running, accelerator)
    assert claim(accelerator, "next").run_id == watched.pk


def test_a_host_cannot_use_another_hosts_task(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    other = attach("h2")
    assert task.token
    with pytest.raises(Problem):
        tasks.leased_task(uid=task.uid, token=task.token, host=other.host)
    with pytest.raises(Problem):
        end(task, other)


@pytest.mark.django_db(transaction=True)
def test_eight_accelerators_share_tasks_without_doubling_one() -> None:
    accelerators = [attach(f"h{number}") for number in range(8)]
    request(("layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu"), repeats=2)
    total = Task.objects.count()
    claimed: list[int] = []
    start = threading.Barrier(8)

    def work(accelerator: Accelerator) -> None:
        start.wait(30)
        while got := tasks.claim(accelerator=accelerator, nonce=uuid.uuid4().hex):
            claimed.append(got.pk)
            end(got, accelerator)

    for thread in [in_thread(partial(work, item)) for item in accelerators]:
        thread.join(60)
    assert sorted(claimed) == sorted(set(claimed))
    assert len(claimed) == total
    assert Run.objects.get().state == State.SUCCEEDED


@pytest.mark.django_db(transaction=True)
def test_cancel_racing_claims_ends_in_one_valid_state() -> None:
    for _ in range(10):
        Run.objects.all().delete()
        accelerators = [attach(f"h{uuid.uuid4().hex[:8]}") for _ in range(4)]
        run = request(("gemv", "gather_gemv"), repeats=2)
        start = threading.Barrier(5)

        def work(accelerator: Accelerator, start: threading.Barrier = start) -> None:
            start.wait(30)
            while got := tasks.claim(accelerator=accelerator, nonce=uuid.uuid4().hex):
                cancel = tasks.report(task=got, progress={})
                end(got, accelerator, "cancelled" if cancel else "ok")

        def stop(run: Run = run, start: threading.Barrier = start) -> None:
            start.wait(30)
            tasks.cancel(run=run, who="me")

        for thread in [*(in_thread(partial(work, item)) for item in accelerators), in_thread(stop)]:
            thread.join(60)
        run.refresh_from_db()
        assert run.state in {State.CANCELLED, State.SUCCEEDED}
        assert not run.tasks.filter(state__in=["queued", "running"]).exists()


@pytest.mark.django_db(transaction=True)
def test_eight_concurrent_final_reports_count_once() -> None:
    accelerator = attach("h1")
    run = request()
    task = claim(accelerator)
    answers: list[str] = []
    start = threading.Barrier(8)

    def finish() -> None:
        start.wait(30)
        answers.append(end(task, accelerator).state)

    for thread in [in_thread(finish) for _ in range(8)]:
        thread.join(60)
    assert answers == ["done"] * 8
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED


def test_a_host_cannot_end_a_task_as_cancelled_unasked(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    with pytest.raises(ValueError, match="was not cancelled"):
        end(task, accelerator, "cancelled")
    assert end(task, accelerator, "failed").status == "failed"
