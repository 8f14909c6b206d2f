"""The clock was hours ahead for a while, and is right again: what was noted meanwhile blocks nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from hud.accounts.limits import RateLimit
from hud.hosts import heartbeats
from hud.models import Accelerator, Heartbeat, LimitUse, Task
from hud.runs import matching, tasks
from tests.support.claims import claim, request
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db
AHEAD = timedelta(hours=2)


def test_a_caller_has_the_rest_of_a_limit_and_a_lease_of_a_dead_host_ends(
    accelerator: Accelerator,
) -> None:
    limit = RateLimit("clock", lambda: 2, 60)
    assert [limit.take("c") for _ in range(2)] == [0, 0]
    LimitUse.objects.update(at=timezone.now() + AHEAD)
    assert 0 < limit.take("c") <= 60
    LimitUse.objects.update(at=timezone.now() - timedelta(seconds=31))
    assert limit.take("c") == 0
    request()
    task = claim(accelerator)
    assert tasks.break_leases() == []
    Task.objects.update(lease_until=timezone.now() + AHEAD)
    assert tasks.break_leases() == [task.pk]


def test_a_new_grace_period_begins_and_ends() -> None:
    heartbeats.beat("tick")
    Heartbeat.objects.update(last=timezone.now() + AHEAD, trusted_from=timezone.now() + AHEAD)
    heartbeats.beat("tick")
    row = Heartbeat.objects.get(name="tick")
    assert row.last <= timezone.now()
    assert row.trusted_from <= timezone.now() + timedelta(seconds=61)


def test_an_idle_accelerator_is_rung(accelerator: Accelerator, redis_server: RedisServer) -> None:
    request()
    Accelerator.objects.update(rung_at=timezone.now() + AHEAD)
    assert matching.ring_idle() == 1
