"""A fleet of a thousand hosts, simulated: each task is taken once, and nothing takes longer than it may."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable

import pytest
from django.db import transaction
from django.test import Client

from hud.models import Accelerator, Run, State, Stream, Task
from hud.runs import matching, queue, tasks
from tests.soak import Figures
from tests.support.claims import end
from tests.support.factories import create_accelerator, create_host, create_run, create_task
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.soak, pytest.mark.alone, pytest.mark.django_db]

HOSTS, GPUS, RUNS, TASKS = 1000, 4, 200, 20
CLASSES = ("person", "ci", "night")


def fleet() -> list[Accelerator]:
    """Return the accelerators of hosts of two archs, with runs of fifty people that wait for them."""
    made = []
    with transaction.atomic():
        for number in range(HOSTS):
            host = create_host(f"node-{number}", age_s=-3600)  # its heartbeat lasts for the whole test
            arch = ("b200", "h200")[number % 2]
            made += [create_accelerator(host, arch=arch, name=f"cuda:{place}") for place in range(GPUS)]
        stream = Stream.objects.get_or_create(name="nightly")[0]
        for number in range(RUNS):
            about = {"requested_by": f"user{number % 50}, key k", "run_class": CLASSES[number % 3]}
            run = create_run(
                "queued", stream=stream, device="cuda", arch=("b200", "h200", "")[number % 3], **about
            )
            spec = create_task(run).spec
            more = (Task(run=run, spec=spec, state="queued", position=place) for place in range(1, TASKS))
            Task.objects.bulk_create(more)
    return made


def took_s(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_a_thousand_hosts(redis_server: RedisServer, figures: Figures) -> None:
    accelerators, client = fleet(), Client()
    figures.note("waking all that are idle", took_s(matching.ring_idle), "s", most=20)
    figures.note("nobody to wake", took_s(matching.ring_idle) * 1000, "ms", most=500)
    for page in ("/", "/hosts/", "/runs/", "/hosts/live"):
        client.get(page)
        figures.note(f"page {page}", took_s(lambda page=page: client.get(page)) * 1000, "ms", most=2000)  # type: ignore[misc]
    figures.note("queue", took_s(queue.read) * 1000, "ms", most=2000)
    claims_s, taken = list[float](), list[Task]()
    for _round in range(RUNS * TASKS // len(accelerators)):
        working = []
        for accelerator in accelerators:
            began = time.monotonic()
            task = tasks.claim(accelerator=accelerator, nonce=uuid.uuid4().hex)
            claims_s.append(time.monotonic() - began)
            if task:
                working.append((task, accelerator))
        figures.note("accelerators that work", len(working), least=len(accelerators) * 0.9)
        for task, accelerator in working:
            taken.append(end(task, accelerator))
    figures.note("a claim, median", statistics.median(claims_s) * 1000, "ms", most=100)
    assert len({task.pk for task in taken}) == len(taken)
    left = Task.objects.filter(state="queued").count()
    assert left == RUNS * TASKS - len(taken)
    if not left:
        assert not Run.objects.exclude(state=State.SUCCEEDED).exists()
