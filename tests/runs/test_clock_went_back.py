"""The clock was hours ahead for a while, and is right again: what was noted meanwhile blocks nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from hud.accounts import keys
from hud.accounts.access import RateLimit
from hud.hosts import heartbeats, queues
from hud.models import Accelerator, ApiKey, Heartbeat, Task
from hud.runs import matching, tasks
from tests.support.claims import claim, request
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db
AHEAD = timedelta(hours=2)


def test_a_key_has_its_calls_and_a_lease_of_a_dead_host_ends(accelerator: Accelerator) -> None:
    key = keys.create_key(name="k", scopes=["upload"], who="t")[0]
    keys.take_call(key, 60)
    ApiKey.objects.update(calls_at=timezone.now() + AHEAD)
    keys.take_call(key, 60)  # raises nothing
    request()
    task = claim(accelerator)
    assert tasks.break_leases() == []
    Task.objects.update(lease_until=timezone.now() + AHEAD)
    assert tasks.break_leases() == [task.pk]


def test_a_new_grace_period_begins_and_ends() -> None:
    heartbeats.beat("tick")
    Heartbeat.objects.update(last=timezone.now() + AHEAD, trusted_from=timezone.now() + AHEAD)
    heartbeats.beat("tick")
    row = Heartbeat.objects.get()
    assert row.last <= timezone.now()
    assert row.trusted_from <= timezone.now() + timedelta(seconds=61)


def test_an_idle_accelerator_is_rung_and_a_caller_may_try_again(
    accelerator: Accelerator, redis_server: RedisServer
) -> None:
    request()
    Accelerator.objects.update(rung_at=timezone.now() + AHEAD)
    assert matching.ring_idle() == 1
    limit = RateLimit("clock", lambda: 1, 60)
    with queues.connect() as redis:
        redis.set("hud:rate_limit:clock:c", 5, ex=7200)
    assert limit.take("c") > 0
    assert limit.take("c") == 0
