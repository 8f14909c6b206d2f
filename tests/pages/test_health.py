"""/readyz names each component that stands still; /healthz asks nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from hud.hosts import heartbeats
from hud.models import Heartbeat, Run, State, UnjudgedRun
from tests.support.factories import create_run
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


def test_a_process_that_never_ran_is_missed_once_work_waits_for_it(
    client: Client, redis_server: RedisServer
) -> None:
    heartbeats.beat("tick")
    run = create_run(State.SUCCEEDED)
    UnjudgedRun.objects.create(run=run)
    assert wrong(client) == set()
    Run.objects.update(finished=timezone.now() - timedelta(hours=1))
    assert wrong(client) == {"judge"}


def test_healthz_asks_no_database(client: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0):
        assert client.get("/healthz").json() == {"status": "ok"}
