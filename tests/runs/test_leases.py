"""Leases: broken after silence, given back, and fenced by their token against whoever had them before."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone

from hud.hosts import heartbeats
from hud.models import Accelerator, Heartbeat, State, Task
from hud.problems import Problem
from hud.runs import tasks
from tests.support.claims import attach, claim, end, expire, in_thread, request
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db


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
    assert not tasks.report(task=task, progress={"phase": "measure"})
    assert tasks.break_leases() == []


def test_a_handed_back_task_has_used_no_attempt(accelerator: Accelerator) -> None:
    request()
    task = claim(accelerator)
    assert end(task, accelerator, "not_run", code=tasks.HANDED_BACK).state == Task.State.QUEUED
    assert claim(accelerator, "again").attempt == 1


def test_a_repeated_hand_back_changes_nothing_until_another_host_has_the_task(
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


def test_a_cancelled_run_whose_host_fell_silent_ends_cancelled(accelerator: Accelerator) -> None:
    run = request()
    task = claim(accelerator)
    tasks.cancel(run=run, who="me")
    expire(task)
    tasks.break_leases()
    run.refresh_from_db()
    assert run.state == State.CANCELLED


def test_a_run_cancelled_while_its_host_is_silent_ends_with_the_lease(
    accelerator: Accelerator, settings: Any
) -> None:
    settings.HUD_LEASE_S = 0.4
    run = request(("layer_norm", "mlp_layer_norm_gelu"))
    task = claim(accelerator)
    tasks.cancel(run=run, who="me")
    run.refresh_from_db()
    assert run.state == State.RUNNING, "something may still be running there"
    wait_for(lambda: Task.objects.filter(pk=task.pk, lease_until__lt=Now()).exists(), "the end of the lease")
    assert tasks.report(task=task, progress={}), "it wakes in time, and is told"
    assert tasks.break_leases() == []
    wait_for(tasks.break_leases, "the end of the lease")
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    assert "cancelled" in run.reason
    with pytest.raises(tasks.LeaseBroken):
        end(task, accelerator, "cancelled")


@pytest.mark.parametrize("how", ["lost", "handed back"])
def test_a_task_taken_by_another_host_is_fenced_for_the_first(
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
    with pytest.raises(Problem):
        end(task, attach("h3"))


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
        cancelled.append(in_thread(lambda: tasks.cancel(run=run, who="me")))
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


def test_tick_breaks_no_lease_within_the_grace_period(accelerator: Accelerator, settings: Any) -> None:
    settings.HUD_GRACE_S = 60
    request()
    task = claim(accelerator)
    expire(task)
    heartbeats.beat("web")
    call_command("tick", "--once")
    assert Task.objects.get().state == Task.State.RUNNING, "tick has only just started"
    Heartbeat.objects.update(trusted_from=timezone.now() - timedelta(seconds=1))
    call_command("tick", "--once")
    assert Task.objects.get().state == Task.State.QUEUED
    second = claim(accelerator, "two")
    expire(second)
    Heartbeat.objects.filter(name="web").update(last=timezone.now() - timedelta(seconds=600))
    call_command("tick", "--once")
    assert Task.objects.get().state == Task.State.RUNNING, "the web was away, so the silence may be ours"
