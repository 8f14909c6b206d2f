"""/readyz names each component that stands still; /healthz asks nothing."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from hud.hosts import heartbeats, queues
from hud.judging import judge
from hud.models import Heartbeat, Run, Series, State, UnjudgedRun
from tests.support.factories import create_measurement, create_run
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db
PROCESSES = ("tick", "judge", "imports")


def wrong(client: Client) -> set[str]:
    answer: Any = client.get("/readyz")
    found = {name for name, state in answer.json()["components"].items() if state != "ok"}
    assert answer.status_code == (503 if found else 200)
    return found


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
