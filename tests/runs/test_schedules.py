"""Schedules: checked when they are written, fired once for each due time, never in a person's way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from hud.accounts import audit
from hud.models import Accelerator, Audit, Heartbeat, Run, RunRequest, Schedule, ScheduleTrigger, State
from hud.runs import requests, schedules, tasks
from runner.schema.tasks import Selection, plan
from tests.support.claims import options
from tests.support.factories import create_accelerator, create_host
from tests.support.servers import start_process
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db
NIGHT = datetime(2026, 11, 20, 4, 10, tzinfo=UTC)


@pytest.fixture
def accelerator() -> Accelerator:
    return create_accelerator(arch="cpu-x86_64")


def create_schedule(*, since: datetime = NIGHT - timedelta(hours=12), **over: Any) -> Schedule:
    fields = {"name": "nightly", "cron": "10 4 * * *", "suite": "micro", "device": "cpu", **over}
    schedule = schedules.save(Schedule(**fields), who="olga")
    Schedule.objects.filter(pk=schedule.pk).update(active_from=since)
    schedule.refresh_from_db()
    return schedule


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("over", "field", "words"),
    [
        ({"cron": "10 4 * *"}, "cron", "five fields"),
        ({"cron": "10 4 * * * *"}, "cron", "this one has 6"),
        ({"cron": "61 * * * *"}, "cron", "minute"),
        ({"cron": "H 4 * * *"}, "cron", "minute"),
        ({"cron": "R R * * *"}, "cron", "minute"),
        ({"cron": "a b c d e"}, "cron", "minute"),
        ({"cron": "0 0 30 2 *"}, "cron", "day-of-month"),
        ({"time_zone": "Mars/Olympus"}, "time_zone", "'Mars/Olympus' is no time zone"),
        ({"time_zone": "../etc/passwd"}, "time_zone", "is no time zone"),
        ({"suite": "nonsense"}, "suite", "no suite is called 'nonsense'"),
        ({"cases": ["nonsense"]}, "suite", "has no case 'nonsense'"),
        ({"suite": "", "preset": "nobodys"}, "suite", "no preset is called 'nobodys'"),
        ({"suite": ""}, "suite", "no suite is called ''"),
        ({"repeats": 99}, "suite", "repeats are 1 to 20"),
        ({"labels": ["gpu"]}, "labels", "labels are an object"),
        ({"name": ""}, "name", "blank"),
    ],
)
def test_a_schedule_that_could_never_fire_is_refused_by_field(
    over: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        create_schedule(**over)
    assert words in " ".join(caught.value.message_dict[field])
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("cron", "zone", "now", "due"),
    [
        ("10 4 * * *", "UTC", "2026-11-20 04:10:00", "2026-11-20 04:10:00"),
        ("10 4 * * *", "UTC", "2026-11-20 04:09:59.999", "2026-11-19 04:10:00"),
        ("10 4 * * mon-fri", "UTC", "2026-11-22 12:00", "2026-11-20 04:10"),
        ("30 2 * * *", "Europe/Berlin", "2026-07-01 12:00", "2026-07-01 00:30"),
        # 2026-03-29 02:00 becomes 03:00: half past two does not exist, and comes then
        ("30 2 * * *", "Europe/Berlin", "2026-03-29 00:59:59", "2026-03-28 01:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29 05:00", "2026-03-29 01:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-30 00:30", "2026-03-30 00:30"),
        # 2026-10-25 03:00 becomes 02:00: half past two exists twice, and comes once
        ("30 2 * * *", "Europe/Berlin", "2026-10-25 00:30", "2026-10-25 00:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25 01:30", "2026-10-25 00:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25 23:00", "2026-10-25 00:30"),
        # every hour is every hour
        ("0 * * * *", "Europe/Berlin", "2026-03-29 01:59", "2026-03-29 01:00"),
        ("0 * * * *", "Europe/Berlin", "2026-10-25 00:59", "2026-10-25 00:00"),
        ("0 * * * *", "Europe/Berlin", "2026-10-25 01:00", "2026-10-25 01:00"),
        ("0 * * * *", "Europe/Berlin", "2026-10-25 02:00", "2026-10-25 02:00"),
    ],
)
def test_due_times_follow_their_time_zone(cron: str, zone: str, now: str, due: str) -> None:
    schedule = Schedule(cron=cron, time_zone=zone)
    assert schedules.latest_due(schedule, at(now)) == at(due)
    assert schedules.next_due(schedule, at(due) - timedelta(seconds=1)) == at(due)


def test_a_due_time_fires_once_for_many_ticks(accelerator: Accelerator) -> None:
    create_schedule()
    assert not schedules.fire_due(NIGHT - timedelta(seconds=1)), "the day before it was not active yet"
    assert len(schedules.fire_due(NIGHT)) == 1
    for seconds in (0, 1, 5, 3600):
        assert not schedules.fire_due(NIGHT + timedelta(seconds=seconds))
    run = Run.objects.get()
    assert run.request.trigger
    assert run.request.trigger.due == NIGHT
    assert (run.request.run_class, run.request.requested_by) == ("night", "schedule nightly")
    assert run.tasks.count() == len(plan(Selection("micro", device="cpu")))
    assert Audit.objects.filter(action="run.request", who="schedule nightly").count() == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_ticks_fire_once(accelerator: Accelerator) -> None:
    create_schedule()
    start = threading.Barrier(4)

    def tick() -> None:
        try:
            start.wait(30)
            schedules.fire_due(NIGHT + timedelta(seconds=1))
        finally:
            connection.close()

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (ScheduleTrigger.objects.count(), Run.objects.count()) == (1, 1)


def test_a_schedule_of_an_unknown_zone_stops_no_other(accelerator: Accelerator) -> None:
    broken, whole = create_schedule(name="broken"), create_schedule(name="whole")
    Schedule.objects.filter(pk=broken.pk).update(time_zone="Mars/Olympus")
    assert [trigger.schedule for trigger in schedules.fire_due(NIGHT)] == [whole]
    assert [line.next_due is None for line in schedules.read()] == [True, False]


def test_only_the_latest_missed_time_is_made_up(accelerator: Accelerator) -> None:
    create_schedule(since=NIGHT - timedelta(days=30))
    (trigger,) = schedules.fire_due(NIGHT + timedelta(hours=3))
    assert trigger.due == NIGHT
    assert not schedules.fire_due(NIGHT + timedelta(hours=4))


def test_times_before_a_schedule_was_enabled_are_not_made_up(accelerator: Accelerator) -> None:
    schedule = create_schedule()
    schedules.switch(schedule=schedule, enabled=False, who="olga")
    assert not schedules.fire_due(NIGHT)
    schedules.switch(schedule=schedule, enabled=True, who="olga")
    assert not schedules.fire_due(NIGHT)
    schedules.switch(schedule=schedule, enabled=True, who="olga")
    actions = Audit.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["schedule.create", "schedule.disable", "schedule.enable"]


def test_an_impossible_request_is_explained_and_repeated_at_the_next_time(accelerator: Accelerator) -> None:
    create_schedule(labels={"gpu": "h200"})
    (trigger,) = schedules.fire_due(NIGHT)
    assert "has the label gpu=h200" in trigger.reason
    assert not Run.objects.exists()
    assert not schedules.fire_due(NIGHT + timedelta(hours=1))
    Accelerator.objects.update(labels={"gpu": "h200"})
    (trigger,) = schedules.fire_due(NIGHT + timedelta(days=1))
    assert not trigger.reason
    assert RunRequest.objects.get().labels == {"gpu": "h200"}


def test_a_queued_run_is_not_requested_again(accelerator: Accelerator) -> None:
    create_schedule()
    schedules.fire_due(NIGHT)
    (trigger,) = schedules.fire_due(NIGHT + timedelta(days=1))
    assert "has not started yet" in trigger.reason
    assert Run.objects.count() == 1


def test_an_interactive_rerun_goes_ahead_between_tasks_of_a_scheduled_run(accelerator: Accelerator) -> None:
    create_schedule()
    schedules.fire_due(NIGHT)
    nightly = Run.objects.get()
    first = tasks.claim(accelerator=accelerator, nonce="1")
    assert first
    assert first.run == nightly
    rerun = requests.request_suite(Selection("micro", "cpu", cases=["layer_norm"]), options(device="cpu"))
    assert tasks.claim(accelerator=accelerator, nonce="2") is None, "what runs is not interrupted"
    for expected in (rerun, nightly):
        running = Run.objects.get(tasks__state="running").tasks.get(state="running")
        assert running.token
        tasks.finish(
            uid=running.uid, token=running.token, host=accelerator.host, status="ok", code="", reason=""
        )
        claimed = tasks.claim(accelerator=accelerator, nonce=f"then {expected.pk}")
        assert claimed
        assert claimed.run == expected
    rerun.refresh_from_db()
    assert rerun.state == State.SUCCEEDED


def test_ceilings_are_read_on_every_accelerator(accelerator: Accelerator) -> None:
    Accelerator.objects.all().delete()
    host = create_host("gpu-1")
    for name in ("cuda:0", "cuda:1"):
        create_accelerator(
            host, name=name, suites=["ceilings"], labels={"accelerator": name, "host": "gpu-1"}
        )
    other = create_accelerator(arch="cpu-x86_64", suites=["ceilings"], labels={"accelerator": "cpu"})
    create_accelerator(arch="cpu-x86_64", suites=["micro"])
    call_command("bootstrap")
    schedule = Schedule.objects.get(name=schedules.CEILINGS)
    Schedule.objects.update(active_from=NIGHT)
    schedules.fire_due(NIGHT)
    asked = RunRequest.objects.order_by("pk").values_list("host__name", "device", "labels__accelerator")
    assert list(asked) == [
        ("gpu-1", "cuda", "cuda:0"),
        ("gpu-1", "cuda", "cuda:1"),
        (other.host.name, "cpu", "cpu"),
    ]
    schedules.switch(schedule=schedule, enabled=False, who="olga")
    call_command("bootstrap")
    schedule.refresh_from_db()
    assert not schedule.enabled, "an operator's decision stays"


def test_a_schedule_measures_a_preset_but_for_what_it_names() -> None:
    create_accelerator(arch="cpu-x86_64", suites=["micro", "gpt_fast"], labels={"accelerator": "cpu"})
    create_schedule(preset="gpt_fast", suite="", cases=["gemv", "Llama-2-7b-chat-hf"], everywhere=True)
    (trigger,) = schedules.fire_due(NIGHT)
    assert trigger.reason == ""
    (run,) = Run.objects.all()
    assert {(task.spec["suite"], task.spec["case"], task.spec["dtype"]) for task in run.tasks.all()} == {
        *(("micro", "gemv", dtype) for dtype in ("bfloat16", "int8")),
        *(("gpt_fast", "Llama-2-7b-chat-hf", dtype) for dtype in ("bfloat16", "int8")),
    }


def test_tick_survives_a_failing_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "fire_due", lambda: 1 / 0)
    call_command("tick", "--once")


def test_the_admin_page_validates_schedules(admin_client: Client, admin_user: User) -> None:
    given = {
        "name": "nightly", "enabled": "on", "cron": "10 4 * * *", "time_zone": "Europe/Berlin",
        "suite": "micro", "cases": "gemv,layer_norm", "repeats": "1", "labels": '{"gpu": "h200"}',
    }  # fmt: skip
    refused = admin_client.post("/admin/hud/schedule/add/", {**given, "cron": "4 o'clock"})
    assert "a cron expression has five fields" in refused.content.decode()
    answer = admin_client.post("/admin/hud/schedule/add/", given)
    assert answer.status_code == 302
    schedule = Schedule.objects.get(name="nightly")
    assert (schedule.cases, schedule.labels) == (["gemv", "layer_norm"], {"gpu": "h200"})
    admin_client.post(f"/admin/hud/schedule/{schedule.pk}/delete/", {"post": "yes"})
    told = Audit.objects.filter(action__startswith="schedule.").order_by("pk").values_list("who", "action")
    assert list(told) == [(admin_user.username, "schedule.create"), (admin_user.username, "schedule.delete")]


def test_a_tick_killed_while_it_fires_leaves_nothing_behind(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_schedule()
    with monkeypatch.context() as patch:
        patch.setattr(audit, "note", _killed)  # after the run and its tasks are stored
        with pytest.raises(KeyboardInterrupt):
            schedules.fire_due(NIGHT)
    assert (ScheduleTrigger.objects.count(), Run.objects.count()) == (0, 0)
    (trigger,) = schedules.fire_due(NIGHT)
    assert trigger.requests.count() == 1


def _killed(**_note: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.django_db(transaction=True)
def test_ticks_killed_and_started_around_the_time_fire_once(data: Path) -> None:
    create_accelerator(arch="cpu-x86_64")
    due = timezone.now() - timedelta(minutes=1)
    create_schedule(cron=f"{due:%M %H %d %m} *", since=due - timedelta(minutes=2))
    host = settings.DATABASES["default"]["HOST"]
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgresql://hud@/{connection.settings_dict['NAME']}?host={host}",
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "HUD_TICK_S": "0.05",
    }

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "manage.py", "tick", "--skip-checks"]
        return start_process(command, data / "tick.log", environment)

    first, second = start(), start()
    wait_for(ScheduleTrigger.objects.exists, "the trigger")
    first.kill()  # it, or the other one, holds the lock
    third = start()
    second.kill()
    for process in (first, second):
        process.wait()
    taken_over = timezone.now()
    wait_for(lambda: Heartbeat.objects.filter(name="tick", last__gt=taken_over).exists(), "the third tick")
    third.kill()
    third.wait()
    assert (ScheduleTrigger.objects.count(), Run.objects.count()) == (1, 1)
