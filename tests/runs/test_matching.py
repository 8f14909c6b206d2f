"""Who takes what: labels, hosts, archs and interpreters, in claims, doorbells, positions and refusals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from redis import Redis

from hud.hosts import queues, registration
from hud.models import Accelerator, Host, Run, Task
from hud.runs import matching, queue, tasks
from runner.schema.suite import BadRequest
from runner.schema.tasks import Selection, plan
from tests.support.claims import attach, request
from tests.support.factories import create_run, create_task
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db


def claimed(accelerator: Accelerator, nonce: str = "n") -> int | None:
    """Id of the run whose task the accelerator gets."""
    claim = tasks.claim(accelerator=accelerator, nonce=nonce)
    return claim.run_id if claim else None


def took(seconds: float, case: str = "layer_norm") -> None:
    """Such a task was done before, in that time."""
    now = timezone.now()
    create_task(
        create_run(), spec=plan(Selection("micro", cases=[case], device="cpu"))[0], state="done", started=now,
        finished=now + timedelta(seconds=seconds),
    )  # fmt: skip


def test_a_run_goes_where_its_labels_are() -> None:
    a100, h200 = attach("one", gpu="a100", site="berlin"), attach("two", gpu="h200", site="berlin")
    on_h200 = request(labels={"gpu": "h200"})
    on_two = request(labels={"host": "two", "site": "berlin"})
    anywhere = request()
    assert claimed(a100) == anywhere.pk
    assert claimed(h200) == on_h200.pk
    Task.objects.filter(accelerator=h200).update(state="done", status="ok", finished=timezone.now())
    assert claimed(h200, "next") == on_two.pk


def test_a_run_goes_where_its_interpreter_is() -> None:
    plain, nightly = attach("one"), attach("two")
    Accelerator.objects.filter(pk=nightly.pk).update(
        catalog={"suites": ["micro"], "pythons": ["default", "nightly"]}
    )
    run = request(interpreter="nightly")
    assert claimed(plain) is None
    assert claimed(nightly) == run.pk


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"labels": {"gpu": "b200"}}, "has the label gpu=b200; there are: gpu=a100, gpu=h200"),
        ({"labels": {"shelf": "3"}}, "has the label shelf=3; there are: nothing"),
        (
            {"labels": {"gpu": "h200", "site": "oslo"}},
            "with device cpu and the label gpu=h200 has the label site=oslo; there are: site=berlin",
        ),
        ({"interpreter": "nightly"}, "has an interpreter called nightly; there are: default"),
        (
            {"specs": plan(Selection("timm", cases=["ghostnet_100"], device="cpu", dtypes=["float32"]))},
            "has the suite timm (no interpreter has timm); there are: ceilings, micro",
        ),
    ],
)
def test_a_refusal_names_what_is_missing(over: dict[str, Any], words: str) -> None:
    attach("one", gpu="a100", site="oslo")
    attach("two", gpu="h200", site="berlin")
    Host.objects.filter(name="two").update(facts={"lacking": {"timm": "no interpreter has timm"}})
    with pytest.raises(BadRequest) as caught:
        request(**over)
    assert words in str(caught.value)


def test_a_refusal_for_one_host_names_that_host() -> None:
    attach("one", gpu="a100")
    attach("two", gpu="h200")
    with pytest.raises(BadRequest, match="host one with device cpu has not the label gpu=h200"):
        request(host=Host.objects.get(name="one"), labels={"gpu": "h200"})


def test_a_host_silent_for_two_weeks_gets_no_runs() -> None:
    attach("one")
    Host.objects.update(last_beat=timezone.now() - timedelta(days=15))
    with pytest.raises(BadRequest, match="no host is attached"):
        request()


def test_only_accelerators_that_can_take_work_are_woken(redis_server: RedisServer) -> None:
    names = ("right", "other", "dirty", "drained", "paused", "silent", "detached", "gone", "busy")
    able = {name: attach(name, gpu="h100" if name == "other" else "h200") for name in names}
    nightly = request(("layer_norm",), labels={"host": "busy"})
    assert claimed(able["busy"]) == nightly.pk
    run = request(labels={"gpu": "h200"})
    Accelerator.objects.filter(pk=able["dirty"].pk).update(unavailable_reason="in use")
    Accelerator.objects.filter(pk=able["gone"].pk).update(present=False)
    registration.control("drain", host=able["drained"].host, who="t")
    registration.control("pause", host=able["paused"].host, minutes=60, who="t")
    Host.objects.filter(name="silent").update(last_beat=timezone.now() - timedelta(hours=1))
    Host.objects.filter(name="detached").update(detached_at=timezone.now())
    assert matching.ring_idle() == 1
    rung = Accelerator.objects.get(rung_at__isnull=False)
    assert rung == able["right"]
    with queues.connect() as redis:
        assert _length(redis, rung) == 1
        assert matching.ring_idle() == 0, "not again so soon"
        assert matching.ring_idle(again_s=0, run_id=run.pk) == 1, "but at once for a new run"
        assert _length(redis, rung) == 2
        jobs = [job.decode() for job in redis.lrange(f"rq:queue:{rung.queue}", 0, -1)]
    assert all(job.startswith(f"host-{rung.host_id}-") for job in jobs)
    Host.objects.filter(name="paused").update(paused_until=timezone.now() - timedelta(seconds=1))
    assert matching.ring_idle() == 1, "a pause that is over"


def test_no_more_are_woken_than_there_are_tasks_and_first_who_measured_them_last(
    redis_server: RedisServer,
) -> None:
    fleet = [attach(f"node-{number}") for number in range(6)]
    run = request(("layer_norm",))
    Task.objects.filter(run=run).update(home=fleet[3])
    Accelerator.objects.update(rung_at=None)
    assert matching.ring_idle(again_s=0, run_id=run.pk) == 1
    assert Accelerator.objects.get(rung_at__isnull=False) == fleet[3]
    for _ in range(2):
        create_task(run)
    assert matching.ring_idle() == 3, "of the others: the first has been rung"
    assert Accelerator.objects.filter(rung_at__isnull=False).count() == 4
    assert matching.ring_idle() == 2


def _length(redis: Redis, accelerator: Accelerator) -> int:
    length = redis.llen(f"rq:queue:{accelerator.queue}")
    assert isinstance(length, int)
    return length


def test_without_redis_a_request_only_loses_the_wake_up(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    attach("one")
    attach("two")
    run = request()
    assert matching.ring_idle(again_s=0, run_id=run.pk) == 0
    assert not Accelerator.objects.filter(rung_at__isnull=False).exists()


def position(run: Run) -> int | None:
    waiting = queue.read_waiting(run)
    return waiting.position if waiting else None


def starts_in_s(run: Run) -> float | None:
    waiting = queue.read_waiting(run)
    return waiting.starts_in_s if waiting else None


def test_the_queue_position_counts_runs_for_the_same_accelerators() -> None:
    attach("one", gpu="a100")
    attach("two", gpu="h200")
    first = request(labels={"gpu": "a100"})
    second = request(labels={"gpu": "h200"})
    third = request()
    watched = request(labels={"gpu": "h200"}, run_class="person")
    assert [position(run) for run in (first, second, third, watched)] == [1, 2, 4, 1]


def test_a_queued_run_has_an_estimated_start() -> None:
    one = attach("one", gpu="a100")
    attach("two", gpu="h200")
    took(100)
    took(40, "mlp_layer_norm_gelu")
    first = request(("layer_norm", "mlp_layer_norm_gelu"))
    assert starts_in_s(first) == 0.0, "nothing is ahead"
    second = request()
    assert starts_in_s(second) == 70.0, "when a task of the mean length ends"
    on_a100 = request(labels={"gpu": "a100"})
    assert starts_in_s(on_a100) == 170.0, "after two tasks"
    watched = request(run_class="person")
    assert starts_in_s(watched) == 0.0
    tasks.cancel(run=watched, who="me")
    assert claimed(one) == first.pk
    Task.objects.filter(state="running").update(started=timezone.now() - timedelta(seconds=60))
    first.refresh_from_db()
    assert starts_in_s(first) is None, "it has started"
    ahead_s = starts_in_s(second)
    assert ahead_s == pytest.approx((40 + 40) / 2, abs=5)
    registration.control("drain", host=Host.objects.get(name="two"), who="t")
    assert starts_in_s(second) == pytest.approx(40 + 40, abs=10), "one accelerator is left"
    request(("gemv",), run_class="person")
    assert starts_in_s(second) is None, "nobody knows how long a gemv takes"
    Host.objects.update(drained=True)
    assert starts_in_s(second) is None, "nobody takes work"
