"""A card that drifts from its own canary takes no tasks, and its night decides nothing, until it is back."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.hosts import registration
from hud.judging.judge import process_pending
from hud.judging.regressions import fleet
from hud.models import Accelerator, Audit, Point, State, Task
from hud.runs import tasks
from runner.schema.protocol import PROTOCOL
from runner.schema.suite import TaskSpec
from tests.support.factories import (
    create_accelerator,
    create_environment,
    create_experiment,
    create_host,
    create_measurement,
    create_run,
    create_task,
    create_user,
)

pytestmark = pytest.mark.django_db
COPY = TaskSpec("ceilings", "copy", device="cuda", mode="inference", dtype="bfloat16", backend="eager")


@pytest.fixture
def cards() -> list[Accelerator]:
    """Three cards of three hosts, each with ten quiet readings."""
    cards = [
        create_accelerator(create_host(f"h200-{name}"), uuid=f"GPU-{name}", suites=("micro", "ceilings"))
        for name in "abc"
    ]
    for days in range(11, 1, -1):
        for card in cards:
            read(card, 4200, timezone.now() - timedelta(days=days))
    return cards


def read(card: Accelerator, value: float, at: datetime, *, suite: str = "ceilings") -> Point:
    """Store a value of a task of this card, which the judge has not seen."""
    spec = COPY if suite == "ceilings" else replace(COPY, suite="micro", case="layer_norm")
    run = create_run(
        order_time=at,
        created=at,
        host_name=card.host.name,
        finished=at,
        selection={"suite": suite},
    )
    create_task(run, spec=spec, state=Task.State.DONE, accelerator=card, started=at, finished=at)
    experiment = create_experiment(
        suite=suite, case=spec.case, knobs={}, backend=spec.backend, arch=card.arch
    )
    environment = create_environment(gpu_uuid=card.uuid)
    create_measurement(experiment, value=value, run=run, environment=environment, judged=False)
    return Point.objects.get(run=run)


def judge() -> None:
    while process_pending():
        pass


def reasons() -> dict[str, str]:
    rows = Accelerator.objects.exclude(quarantine_reason="")
    return {card.host.name: card.quarantine_reason for card in rows}


def test_its_night_decides_nothing_and_it_gets_only_canaries(cards: list[Accelerator]) -> None:
    night, earlier = timezone.now() - timedelta(hours=3), timezone.now() - timedelta(days=1)
    old = read(cards[0], 90, earlier, suite="micro")
    own = read(cards[0], 100, night, suite="micro")
    other = read(cards[1], 100, night, suite="micro")
    for card, value in zip(cards, (3900, 4205, 4199), strict=True):
        read(card, value, night + timedelta(hours=1))
    judge()
    assert reasons().keys() == {"h200-a"}
    assert [Point.objects.get(pk=point.pk).quality for point in (old, own, other)] == [
        None,
        "quarantined",
        None,
    ]
    assert Audit.objects.filter(action="card.quarantine", subject="h200-a cuda:0").count() == 1
    suites = ("micro", "ceilings")
    waiting = [create_run(State.QUEUED, selection={"suite": suite}, device="cuda") for suite in suites]
    for run in waiting:
        create_task(run, spec=COPY)
    taken = [tasks.claim(accelerator=card, nonce="n") for card in cards]
    assert [task and task.run_id for task in taken] == [waiting[1].pk, waiting[0].pk, None]


def test_where_most_move_none_is_quarantined_and_the_system_page_says_so(
    cards: list[Accelerator], client: Client, redis_server: Any
) -> None:
    night = timezone.now() - timedelta(hours=3)
    own = read(cards[0], 100, night, suite="micro")
    read(cards[0], 3900, night + timedelta(minutes=10))
    judge()
    assert reasons()
    for card in cards[1:]:
        read(card, 3900, night + timedelta(minutes=20))
    judge()
    assert not reasons()
    assert Point.objects.get(pk=own.pk).quality is None
    client.force_login(create_user())
    assert fleet.moved_together() in client.get("/system/").content.decode()
    assert fleet.moved_together()


def test_three_good_readings_or_a_person_bring_it_back(cards: list[Accelerator]) -> None:
    for hours in (40, 30, 20, 10):
        read(cards[0], 3900 if hours == 40 else 4200, timezone.now() - timedelta(hours=hours))
        judge()
        assert bool(reasons()) == (hours > 10)
    read(cards[1], 3900, timezone.now())
    judge()
    assert reasons().keys() == {"h200-b"}
    registration.control("resume", host=cards[1].host, who="olga")
    assert not reasons()
    fleet.act()  # its baseline begins anew
    assert not reasons()


def test_another_torch_is_no_canary(cards: list[Accelerator]) -> None:
    read(cards[0], 3900, timezone.now())
    Point.objects.filter(run__order_time__lt=timezone.now() - timedelta(hours=1)).update(
        environment=create_environment(gpu_uuid=cards[0].uuid, torch="2.10.0")
    )
    judge()
    assert not reasons()


def test_a_rising_count_of_ecc_errors_quarantines_at_the_heartbeat(cards: list[Accelerator]) -> None:
    host = cards[0].host

    def beat(**errors: int) -> None:
        registration.beat(
            host=host,
            protocol=PROTOCOL,
            sent_at=0.0,
            facts={"gpu_errors": {f"GPU-{name}": count for name, count in errors.items()}},
            labels={},
            devices=[Accelerator(name="cuda:0", device="cuda", arch="h200", uuid="GPU-a", catalog={})],
        )
        host.refresh_from_db()

    beat(a=2)
    beat(a=2, b=1)
    assert not reasons()
    beat(a=3)
    assert "3" in reasons()["h200-a"]
