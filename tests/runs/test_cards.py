"""A task goes to the card on which its series was last measured, if that comes free within a bound."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hud.hosts import registration
from hud.ingest import deliveries
from hud.models import Accelerator, Host, Measurement, Run, Task
from hud.runs import tasks
from runner.schema.protocol import PROTOCOL
from runner.schema.suite import TaskSpec
from runner.schema.tasks import Selection, plan
from tests.support import claims
from tests.support.claims import end
from tests.support.records import as_lines, task_record

pytestmark = pytest.mark.django_db


def attach(name: str, *uuids: str) -> list[Accelerator]:
    """A host with these cards."""
    host = Host.objects.filter(name=name).first() or Host.objects.create(name=name)
    catalog = {"suites": ("micro",), "pythons": ("default",)}
    devices = [
        Accelerator(
            name=f"cuda:{place}",
            device="cuda",
            device_name="NVIDIA H200",
            arch="h200",
            uuid=card,
            catalog=catalog,
        )
        for place, card in enumerate(uuids)
    ]
    now = timezone.now().timestamp()
    registration.beat(
        host=host, protocol=PROTOCOL, sent_at=now, facts={}, labels={"pool": "a"}, devices=devices
    )
    return list(Accelerator.objects.select_related("host").filter(host=host).order_by("name"))


@pytest.fixture
def cards() -> list[Accelerator]:
    return attach("h200-a", "GPU-0", "GPU-1")


def request(*cases: str, **over: Any) -> Run:
    specs = plan(Selection("micro", cases=cases or ("layer_norm",), device="cuda"))
    return claims.request(specs=specs, device="cuda", **{"compilations": 1, **over})


def claim(card: Accelerator) -> Task | None:
    return tasks.claim(accelerator=card, nonce=uuid.uuid4().hex)


def measure(card: Accelerator, run: Run) -> None:
    """Have a card do all of a run."""
    while task := claim(card):
        assert task.run_id == run.pk
        end(task, card)


def case_of(task: Task | None) -> str:
    return str(task.spec["case"]) if task else ""


def later(seconds: float) -> None:
    for task in Task.objects.exclude(passed_at=None):
        Task.objects.filter(pk=task.pk).update(passed_at=task.passed_at - timedelta(seconds=seconds))  # type: ignore[operator]


def test_a_series_stays_on_its_card(cards: list[Accelerator]) -> None:
    first, second = cards
    measure(second, request())
    run = request()
    assert claim(first) is None, "its card is free"
    task = claim(second)
    assert task
    assert task.run_id == run.pk


def test_a_card_that_does_not_come_free_in_time_is_not_waited_for(
    cards: list[Accelerator], settings: Any
) -> None:
    first, second = cards
    measure(second, request())
    run = request()
    assert claim(first) is None
    later(settings.HUD_SAME_CARD_S - 60)
    assert claim(first) is None
    later(61)
    task = claim(first)
    assert task
    assert task.run_id == run.pk


@pytest.mark.parametrize("why", ["drained", "silent", "gone", "unavailable", "not asked for", "off"])
def test_a_card_that_cannot_take_it_is_not_waited_for(
    cards: list[Accelerator], settings: Any, why: str
) -> None:
    (other,) = attach("h200-b", "GPU-2")
    measure(other, request())
    over = {"host": cards[0].host} if why == "not asked for" else {}
    if why == "off":
        settings.HUD_SAME_CARD_S = 0
    elif why == "drained":
        registration.control("drain", host=other.host, who="me")
    elif why == "silent":
        Host.objects.filter(pk=other.host_id).update(last_beat=timezone.now() - timedelta(minutes=5))
    elif why == "gone":
        attach("h200-b", "")
        Accelerator.objects.filter(pk=other.pk).update(present=False)
    elif why == "unavailable":
        Accelerator.objects.filter(pk=other.pk).update(unavailable_reason="a game")
    request(**over)
    assert claim(cards[0])


def test_each_card_takes_its_own_first(cards: list[Accelerator]) -> None:
    first, second = cards
    measure(first, request("gemv"))
    measure(second, request("layer_norm"))
    request("layer_norm", "gemv")
    assert case_of(claim(first)) == "gemv"
    assert case_of(claim(second)) == "layer_norm"


def test_what_was_never_measured_goes_anywhere(cards: list[Accelerator]) -> None:
    measure(cards[1], request("layer_norm"))
    request("gemv")
    assert claim(cards[0])


def test_a_failed_task_names_no_card(cards: list[Accelerator]) -> None:
    request()
    task = claim(cards[1])
    assert task
    end(task, cards[1], "crashed")
    request()
    assert claim(cards[0])


def test_a_point_of_another_card_says_so(cards: list[Accelerator], settings: Any) -> None:
    first, second = cards
    measure(second, request())
    for card, waits in ((second, False), (first, True)):
        request()
        if waits:
            assert claim(first) is None
            later(settings.HUD_SAME_CARD_S + 1)
        task = claim(card)
        assert task
        assert task.token
        record = task_record(TaskSpec.from_json(task.spec))
        receipt = deliveries.take_results(
            uid=task.uid, token=task.token, host=card.host, body=as_lines(record)
        )
        assert receipt.stored == 1
        (note,) = Measurement.objects.filter(run=task.run_id).values_list("note", flat=True)
        assert ("another card" in (note or "")) == waits
        assert not note or ("cuda:0" in note and "cuda:1" in note)
        end(task, card)


def test_processors_are_no_cards() -> None:
    here, there = claims.attach("cpu-a"), claims.attach("cpu-b")
    claims.request()
    end(claims.claim(there), there)
    claims.request()
    assert claims.claim(here)
