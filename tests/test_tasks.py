"""Work under lease: claimed once, fenced by its token, tried again once, ended once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone

from hud import beacons, hosts, runs, tasklogs, tasks
from hud.models import Accelerator, Audit, Beacon, Experiment, Host, Measurement, Run, State, Task
from runner.catalog import plan
from tests.records import as_list, v3_record
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def accelerator() -> Accelerator:
    return attach("h1")


def attach(name: str, device: str = "cpu", arch: str = "cpu-x86_64") -> Accelerator:
    host = Host.objects.create(name=name)
    found = hosts.beat(
        host=host,
        protocol=1,
        sent_at=timezone.now().timestamp(),
        facts={},
        labels={},
        devices=[hosts.Device(device, device, "x86_64", arch, suites=("micro", "ceilings"))],
    )
    accelerator = found[device]
    return Accelerator.objects.select_related("host").get(pk=accelerator.pk)


def request(cases: tuple[str, ...] = ("layer_norm",), **over: Any) -> Run:
    specs = plan("micro", cases=cases, device="cpu")
    given: dict[str, Any] = {
        "specs": specs, "title": "t", "host": None, "arch": "", "device": "cpu", "repeats": 1, "who": "me",
    }  # fmt: skip
    return runs.request_run(**{**given, **over})


def end(task: Task, accelerator: Accelerator, status: str = "ok", **over: str) -> Task:
    assert task.token
    words = {"code": "", "reason": "", **over}
    return tasks.finish(uid=task.uid, token=task.token, host=accelerator.host, status=status, **words)


def claim(accelerator: Accelerator, nonce: str = "n") -> Task:
    claimed = tasks.claim(accelerator=accelerator, nonce=nonce)
    assert claimed
    return claimed.task


def expire(task: Task) -> None:
    Task.objects.filter(pk=task.pk).update(lease_until=timezone.now() - timedelta(seconds=1))


def test_a_task_is_claimed_once_and_a_repeated_claim_gets_it_again(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator, "one")
    assert claim(accelerator, "one").pk == task.pk
    assert tasks.claim(accelerator=accelerator, nonce="two") is None, "one task at a time"
    run.refresh_from_db()
    assert (run.state, run.host_name) == (State.RUNNING, "h1")
    assert run.started


def test_the_whole_way_to_succeeded(accelerator: Accelerator) -> None:
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
    runs.cancel(run=run, who="late")
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
def test_a_run_ends_as_its_tasks_say(accelerator: Accelerator, status: str, state: str) -> None:
    run = request()
    end(claim(accelerator), accelerator, status, reason="because")
    run.refresh_from_db()
    assert run.state == state
    assert Task.objects.get().attempt == 1, "only infrastructure is tried again"


def test_a_broken_lease_is_tried_again_once_and_then_lost(accelerator: Accelerator) -> None:
    run = request()
    first = claim(accelerator, "one")
    expire(first)
    assert tasks.break_leases() == [first.pk]
    with pytest.raises(tasks.LeaseBroken):
        end(first, accelerator)
    with pytest.raises(tasks.LeaseBroken):
        tasks.report(task=first, progress={})
    second = claim(accelerator, "two")
    assert (second.pk, second.attempt) == (first.pk, 2)
    expire(second)
    tasks.break_leases()
    run.refresh_from_db()
    assert run.state == State.LOST
    assert "silent" in run.reason


def test_a_late_report_within_the_lease_s_grace_is_taken(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    expire(task)
    assert not tasks.report(task=task, progress={"phase": "measure"}).cancel
    assert tasks.break_leases() == []


def test_a_handed_back_task_has_used_no_attempt(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    assert end(task, accelerator, "not_run", code=tasks.HANDED_BACK).state == Task.State.QUEUED
    assert claim(accelerator, "again").attempt == 1


def test_cancel_ends_queued_tasks_at_once_and_tells_the_running_one(accelerator: Accelerator) -> None:
    run = request(("layer_norm", "mlp_layer_norm_gelu"))
    task = claim(accelerator)
    runs.cancel(run=run, who="me")
    runs.cancel(run=run, who="me")
    assert Task.objects.get(position=1).state == Task.State.CANCELLED
    assert tasks.report(task=task, progress={}).cancel
    end(task, accelerator, "cancelled")
    run.refresh_from_db()
    assert (run.state, run.reason) == (State.CANCELLED, "cancelled by me")
    assert Audit.objects.filter(action="run.cancel").count() == 1


def test_cancelling_a_queued_run_ends_it(accelerator: Accelerator) -> None:
    run = request()
    runs.cancel(run=run, who="me")
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    assert tasks.claim(accelerator=accelerator, nonce="x") is None


def test_a_cancelled_run_whose_host_fell_silent_ends_cancelled(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator)
    runs.cancel(run=run, who="me")
    expire(task)
    tasks.break_leases()
    run.refresh_from_db()
    assert run.state == State.CANCELLED


def test_a_watched_run_goes_ahead_and_says_its_place(accelerator: Accelerator) -> None:
    nightly = request(("layer_norm", "mlp_layer_norm_gelu"))
    running = claim(accelerator)
    watched = request(watched=True)
    later = request()
    nightly.refresh_from_db()
    assert runs.queue_position(nightly) is None
    assert runs.queue_position(watched) == 1, "behind what runs now"
    assert runs.queue_position(later) == 2
    end(running, accelerator)
    assert claim(accelerator, "next").run_id == watched.pk


def test_another_host_s_task_does_not_exist(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    other = attach("h2")
    assert task.token
    with pytest.raises(tasks.UnknownTask):
        tasks.held(uid=task.uid, token=task.token, host=other.host)
    with pytest.raises(tasks.UnknownTask):
        end(task, other)


@pytest.mark.parametrize("how", ["lost", "handed back"])
def test_a_task_that_went_to_another_host_is_fenced_for_the_first(
    accelerator: Accelerator, how: str, django_capture_on_commit_callbacks: Any
) -> None:
    request()
    task = claim(accelerator)
    with django_capture_on_commit_callbacks() as callbacks:
        if how == "lost":
            Task.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
            tasks.break_leases()
        else:
            end(task, accelerator, "not_run", code=tasks.HANDED_BACK)
    assert len(callbacks) == (how == "handed back"), "the doorbell; for what is lost, tick rings itself"
    other = attach("h2")
    assert claim(other, "m").uid == task.uid
    with pytest.raises(tasks.LeaseBroken, match="another host"):
        end(task, accelerator)
    with pytest.raises(tasks.UnknownTask):
        end(task, attach("h3"))


def test_results_are_stored_once_and_a_later_attempt_replaces_them(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator)
    assert task.token

    token = task.token

    def deliver(value: float) -> None:
        body = as_list(v3_record(values=[value]))
        tasks.take_results(uid=task.uid, token=token, host=accelerator.host, body=body)

    deliver(1.0)
    deliver(1.0)
    assert Measurement.objects.get().median == 1.0
    deliver(2.0)
    measurement = Measurement.objects.get()
    assert (measurement.median, measurement.run_id) == (2.0, run.pk)


def test_repeats_are_processes_of_one_run(accelerator: Accelerator) -> None:
    run = request(repeats=3)
    for value in (1.0, 2.0, 3.0):
        task = claim(accelerator, uuid.uuid4().hex)
        assert task.token
        body = as_list(v3_record(values=[value]))
        tasks.take_results(uid=task.uid, token=task.token, host=accelerator.host, body=body)
        end(task, accelerator)
    points = Measurement.objects.filter(run=run).order_by("process")
    assert [(point.process, point.median) for point in points] == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_the_log_grows_by_offset_and_a_repeated_piece_is_no_harm(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    assert task.token
    keys: dict[str, Any] = {"uid": task.uid, "token": task.token, "host": accelerator.host}
    assert tasklogs.append(**keys, offset=0, data=b"hello ") == 6
    assert tasklogs.append(**keys, offset=0, data=b"hello world") == 11
    assert tasklogs.append(**keys, offset=0, data=b"hello") == 11
    with pytest.raises(tasklogs.WrongOffset) as caught:
        tasklogs.append(**keys, offset=12, data=b"!")
    assert caught.value.size_bytes == 11
    task.refresh_from_db()
    assert tasklogs.read(task, 6, 100) == b"world"
    with pytest.raises(tasklogs.BadArtifact):
        tasklogs.keep_artifact(**keys, kind="../etc", data=b"", sha256="")
    with pytest.raises(tasklogs.BadArtifact):
        tasklogs.keep_artifact(**keys, kind="trace", data=b"x", sha256="0")
    kept = tasklogs.keep_artifact(**keys, kind="trace", data=b"x", sha256="")
    assert tasklogs.keep_artifact(**keys, kind="trace", data=b"x", sha256="").pk == kept.pk


def test_requests_that_no_host_can_take_say_why(accelerator: Accelerator) -> None:
    for over, words in (
        ({"arch": "h200"}, "no attached host has arch h200; there are: cpu-x86_64"),
        ({"device": "cuda"}, "no attached host has device cuda"),
        ({"repeats": 0}, "repeats are 1 to 20"),
        ({"host": Host.objects.create(name="gone")}, "host gone is not attached"),
    ):
        with pytest.raises(runs.NotPossible, match=words):
            request(**over)
    Accelerator.objects.all().delete()
    with pytest.raises(runs.NotPossible, match="no host is attached"):
        request()
    assert not Run.objects.exists()


def test_a_rerun_of_an_experiment_the_runner_does_not_know_says_so(accelerator: Accelerator) -> None:
    unknown = Experiment.objects.create(suite="elsewhere", case="x")
    with pytest.raises(runs.NotPossible, match="has no suite 'elsewhere'"):
        runs.request_rerun(experiment=unknown, host=None, arch="", device="cpu", repeats=1, who="me")
    case = Experiment.objects.create(
        suite="micro", case="nonsense", dtype="bfloat16", backend="inductor", mode="inference"
    )
    with pytest.raises(runs.NotPossible, match="no case 'nonsense'"):
        runs.request_rerun(experiment=case, host=None, arch="", device="cpu", repeats=1, who="me")


def test_a_rerun_binds_the_experiment_s_own_knobs(accelerator: Accelerator) -> None:
    experiment = Experiment.objects.create(
        suite="micro", case="gemv", knobs={"D": 256}, dtype="int8", backend="inductor",
        mode="inference", device="cuda", arch="h200",
    )  # fmt: skip
    run = runs.request_rerun(experiment=experiment, host=None, arch="", device="cpu", repeats=1, who="me")
    spec = run.tasks.get().spec
    assert (spec["case"], spec["dtype"], spec["knobs"], spec["device"]) == (
        "gemv",
        "int8",
        {"D": [256]},
        "cpu",
    )
    again = runs.request_rerun(experiment=experiment, host=None, arch="", device="cpu", repeats=1, who="me")
    assert again.retry_of_id == run.pk


def test_tick_breaks_no_lease_before_it_may_trust_the_silence(
    accelerator: Accelerator, settings: Any
) -> None:
    settings.HUD_GRACE_S = 60
    request()
    task = claim(accelerator)
    expire(task)
    beacons.beat("web")
    call_command("tick", "--once")
    assert Task.objects.get().state == Task.State.RUNNING, "tick has only just started"
    Beacon.objects.update(trusted_from=timezone.now() - timedelta(seconds=1))
    call_command("tick", "--once")
    assert Task.objects.get().state == Task.State.QUEUED
    second = claim(accelerator, "two")
    expire(second)
    Beacon.objects.filter(name="web").update(last=timezone.now() - timedelta(seconds=600))
    call_command("tick", "--once")
    assert Task.objects.get().state == Task.State.RUNNING, "the web was away, so the silence may be ours"


@pytest.mark.django_db(transaction=True)
def test_eight_accelerators_share_tasks_without_doubling_one() -> None:
    accelerators = [attach(f"h{number}") for number in range(8)]
    request(("layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu"), repeats=2)
    total = Task.objects.count()
    claimed: list[int] = []
    start = threading.Barrier(8)

    def work(accelerator: Accelerator) -> None:
        try:
            start.wait(30)
            while got := tasks.claim(accelerator=accelerator, nonce=uuid.uuid4().hex):
                claimed.append(got.task.pk)
                end(got.task, accelerator)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(item,)) for item in accelerators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(claimed) == sorted(set(claimed))
    assert len(claimed) == total
    assert Run.objects.get().state == State.SUCCEEDED


@pytest.mark.django_db(transaction=True)
def test_cancel_racing_claims_ends_in_one_true_state() -> None:
    for _ in range(10):
        Run.objects.all().delete()
        accelerators = [attach(f"h{uuid.uuid4().hex[:8]}") for _ in range(4)]
        run = request(("gemv", "gather_gemv"), repeats=2)
        start = threading.Barrier(5)

        def work(accelerator: Accelerator, start: threading.Barrier = start) -> None:
            try:
                start.wait(30)
                while got := tasks.claim(accelerator=accelerator, nonce=uuid.uuid4().hex):
                    end(
                        got.task,
                        accelerator,
                        "cancelled" if tasks.report(task=got.task, progress={}).cancel else "ok",
                    )
            finally:
                connection.close()

        def stop(run: Run = run, start: threading.Barrier = start) -> None:
            try:
                start.wait(30)
                runs.cancel(run=run, who="me")
            finally:
                connection.close()

        threads = [threading.Thread(target=work, args=(item,)) for item in accelerators]
        threads.append(threading.Thread(target=stop))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        run.refresh_from_db()
        assert run.state in {State.CANCELLED, State.SUCCEEDED}
        assert not run.tasks.filter(state__in=["queued", "running"]).exists()


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["lost", "handed back"])
def test_a_task_that_returns_to_the_queue_while_its_run_is_cancelled_ends_too(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = attach("h1")
    run = request()
    task = claim(accelerator)
    expire(task)
    cancelled: list[threading.Thread] = []
    looked = tasks._cancelling

    def look_then_let_somebody_cancel(row: Task) -> bool:
        """As if the cancel came at the very moment after nobody had asked for it."""
        found = looked(row)
        cancelled.append(in_thread(lambda: runs.cancel(run=run, who="me")))
        wait_for(lambda: not cancelled[0].is_alive() or _somebody_waits(), "the cancel")
        return found

    monkeypatch.setattr(tasks, "_cancelling", look_then_let_somebody_cancel)
    if how == "lost":
        tasks.break_leases()
    else:
        end(task, accelerator, "not_run", code=tasks.HANDED_BACK)
    cancelled[0].join(60)
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    assert run.tasks.get().state == Task.State.CANCELLED


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_the_last_word_said_eight_times_at_once_is_one_word() -> None:
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


def test_a_hand_back_said_again_is_the_same_until_somebody_else_has_the_task(
    accelerator: Accelerator,
) -> None:
    run = request()
    task = claim(accelerator)
    for _ in range(2):
        assert end(task, accelerator, "not_run", code=tasks.HANDED_BACK).state == Task.State.QUEUED
    run.refresh_from_db()
    assert (run.state, run.started, run.host_name) == (State.QUEUED, None, "")
    claim(accelerator, "two")
    with pytest.raises(tasks.LeaseBroken):
        end(task, accelerator, "not_run", code=tasks.HANDED_BACK)


def test_a_host_cannot_cancel_what_nobody_cancelled(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    with pytest.raises(ValueError, match="nobody asked to cancel"):
        end(task, accelerator, "cancelled")
    assert end(task, accelerator, "failed").status == "failed"


def test_cancelled_while_its_host_is_silent_it_ends_when_the_lease_does(
    accelerator: Accelerator, settings: Any
) -> None:
    settings.HUD_LEASE_S = 0.4
    run = request(("layer_norm", "mlp_layer_norm_gelu"))
    task = claim(accelerator)
    runs.cancel(run=run, who="me")
    run.refresh_from_db()
    assert run.state == State.RUNNING, "something may still be running there"
    wait_for(lambda: Task.objects.filter(pk=task.pk, lease_until__lt=Now()).exists(), "the end of the lease")
    assert tasks.report(task=task, progress={}).cancel, "it wakes in time, and is told"
    assert tasks.break_leases() == []
    wait_for(tasks.break_leases, "the end of the lease")
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    assert "cancelled" in run.reason
    with pytest.raises(tasks.LeaseBroken):
        end(task, accelerator, "cancelled")
