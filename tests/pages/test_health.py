"""/readyz is of this node, /statusz names each shared part that stands still; /healthz asks nothing."""

from __future__ import annotations

import io
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from hud.hosts import heartbeats, queues
from hud.judging import judge
from hud.models import Heartbeat, Import, Run, Series, State, UnjudgedRun
from hud.server import backup, embedded
from tests.support.factories import create_measurement, create_run
from tests.support.servers import Hud, RedisServer
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db
PROCESSES = ("tick", "judge", "imports")


def wrong(client: Client) -> set[str]:
    answer: Any = client.get("/statusz")
    standing = {name for name, part in answer.json()["parts"].items() if part["problem"]}
    assert answer.status_code == (503 if standing else 200)
    assert client.get("/readyz").status_code == 200, "this node serves its pages"
    return standing


def test_each_component_that_stands_still_is_named(client: Client, redis_server: RedisServer) -> None:
    for name in PROCESSES:
        heartbeats.beat(name)
    assert wrong(client) == set()
    for name in PROCESSES:
        for seconds, expected in ((30, set()), (600, {name})):
            Heartbeat.objects.filter(name=name).update(last=timezone.now() - timedelta(seconds=seconds))
            assert wrong(client) == expected
        heartbeats.beat(name)
    redis_server.kill()
    assert wrong(client) == {"redis"}
    redis_server.start()
    assert wrong(client) == set()


def test_ages_and_what_waits_are_numbers(client: Client, redis_server: RedisServer) -> None:
    assert "age_s" not in client.get("/statusz").json()["parts"]["tick"]
    heartbeats.beat("tick")
    Heartbeat.objects.filter(name="tick").update(last=timezone.now() - timedelta(seconds=30))
    Import.objects.create(content_key="k", created=timezone.now() - timedelta(seconds=90))
    create_run(State.QUEUED)
    parts = client.get("/statusz").json()["parts"]
    assert 30 <= parts["tick"]["age_s"] < 60
    assert parts["imports"]["waiting"] == parts["queue"]["waiting"] == 1
    assert 90 <= parts["imports"]["oldest_s"] < 120
    assert parts["outbox"] == {"problem": "", "waiting": 0, "oldest_s": 0}


def test_a_node_with_a_data_folder_of_its_own_is_not_ready_and_does_not_start(
    client: Client, settings: Any, tmp_path: Path
) -> None:
    heartbeats.join()
    shared, settings.HUD_DATA = settings.HUD_DATA, tmp_path
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["components"]["database"]) == (503, "ok")
    assert answer.json()["components"]["data_folder"] != "ok"
    with pytest.raises(heartbeats.CannotStart):
        heartbeats.join()
    for command in (["judge", "--once"], ["bootstrap"]):
        with pytest.raises(CommandError):
            call_command(*command)
    assert not (tmp_path / "host.json").exists()
    settings.HUD_DATA = shared
    heartbeats.join()
    for silence in (timedelta(seconds=60), timedelta(days=-400)):  # it has stopped; its clock had jumped
        Heartbeat.objects.update(last=timezone.now() - silence)
        settings.HUD_DATA = embedded.make_folder(tmp_path / str(silence.days))
        heartbeats.join()
        assert client.get("/readyz").status_code == 200
        Heartbeat.objects.all().delete()


def test_a_folder_that_cannot_be_written_is_refused(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings.HUD_DATA = tmp_path / "file" / "below"
    with pytest.raises(heartbeats.CannotStart, match=str(settings.HUD_DATA)):
        heartbeats.join()


def test_a_node_with_a_copy_of_a_running_node_s_folder_does_not_start(settings: Any, tmp_path: Path) -> None:
    heartbeats.beat("web")
    shared, copied = settings.HUD_DATA / "data_id", tmp_path / "data_id"
    shutil.copy2(shared, copied)
    for age_s in (5, 60):
        os.utime(copied, (shared.stat().st_mtime - age_s,) * 2)
        settings.HUD_DATA = copied.parent
        with pytest.raises(heartbeats.CannotStart):
            heartbeats.join()
        settings.HUD_DATA = shared.parent
        heartbeats.join()
    settings.HUD_DATA = copied.parent
    Heartbeat.objects.update(last=timezone.now() - timedelta(seconds=60))  # the other node has stopped
    heartbeats.join()


def test_an_older_database_is_refused_in_words_and_a_newer_one_serves_nodes_of_before() -> None:
    recorder, newest = MigrationRecorder(connection), backup.MIGRATIONS[-1]
    recorder.record_unapplied("hud", newest)
    for start in (heartbeats.join, lambda: call_command("judge", "--once")):
        with pytest.raises(heartbeats.CannotStart, match=newest):
            start()
    recorder.record_applied("hud", newest)
    recorder.record_applied("hud", "9999_from_the_future")
    heartbeats.join()


@pytest.mark.django_db(transaction=True)
def test_the_web_says_why_it_does_not_start(live_hud: Hud, tmp_path: Path) -> None:
    wait_for(lambda: Heartbeat.objects.filter(name="web").exists(), "a heartbeat of the first node")
    second = Hud(tmp_path, live_hud.database_url)
    with pytest.raises(AssertionError, match=r"the web ended(?s:.)*Share one folder"):
        second.start(DJANGO_SETTINGS_MODULE="hud.settings", HUD_DATA=str(tmp_path))


@pytest.mark.parametrize("newest_with_holes", [(0, 0, 0), (99, 0, 0)])
def test_a_redis_with_known_holes_is_a_warning_and_no_problem(
    client: Client,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    newest_with_holes: tuple[int, ...],
) -> None:
    monkeypatch.setattr(embedded, "_WHEEL_REDIS", newest_with_holes)
    heartbeats.beat("tick")
    assert wrong(client) == set()
    warning = client.get("/statusz").json()["parts"]["redis"]["warning"]
    assert bool(warning) is (newest_with_holes > (0, 0, 0))


def test_a_full_redis_is_named(client: Client, redis_server: RedisServer) -> None:
    with queues.connect() as redis:
        most = redis.config_get("maxmemory")["maxmemory"]
        redis.config_set("maxmemory", 1)
        try:
            assert wrong(client) == {"redis"}
        finally:
            redis.config_set("maxmemory", most)
    assert wrong(client) == set()


def test_a_process_that_never_ran_is_missed_once_work_waits_for_it(
    client: Client, redis_server: RedisServer
) -> None:
    heartbeats.beat("tick")
    run = create_run(State.SUCCEEDED)
    UnjudgedRun.objects.create(run=run)
    assert wrong(client) == set()
    Run.objects.update(finished=timezone.now() - timedelta(hours=1))
    assert wrong(client) == {"judge"}


def test_a_process_that_an_upgrade_brought_is_missed_and_the_overview_says_so(
    client: Client, redis_server: RedisServer
) -> None:
    for name in ("web", "tick", "judge"):
        heartbeats.beat(name)
    assert wrong(client) == set()
    assert "imports" not in client.get("/").content.decode()
    Heartbeat.objects.update(started=timezone.now() - timedelta(minutes=3))
    assert wrong(client) == {"imports"}
    assert "run manage.py imports" in client.get("/").content.decode()
    heartbeats.beat("imports")
    assert wrong(client) == set()


@pytest.mark.django_db(transaction=True)  # the judge leaves its connection
def test_a_judge_that_fails_in_every_round_stands_still(
    monkeypatch: pytest.MonkeyPatch, client: Client, redis_server: RedisServer
) -> None:
    run = create_run(State.SUCCEEDED)
    create_measurement(run=run)
    UnjudgedRun.objects.create(run=run)
    Heartbeat.objects.create(
        name="judge",
        **dict.fromkeys(("started", "last", "trusted_from"), timezone.now() - timedelta(hours=1)),
    )

    def fails(_series: Series) -> None:
        raise OperationalError("canceling statement due to statement timeout")

    monkeypatch.setattr(judge, "judge_series", fails)
    call_command("judge", "--once", stderr=io.StringIO())
    assert wrong(client) == {"judge"}
    monkeypatch.undo()
    call_command("judge", "--once")
    assert "judge" not in wrong(client)


def test_healthz_asks_no_database(client: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0):
        assert client.get("/healthz").json() == {"status": "ok"}
