"""F13 and F14: everything said several times, at once, too early or out of order, by a host made by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from hud.hosts import registration
from hud.models import Measurement, State, Task
from hud.runs import logs, tasks
from runner.client.connection import Refused
from runner.host.client import Hud as Client
from runner.host.client import Lease, LeaseBroken, WrongOffset
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from tests.faults.installation.site import Site, only_task
from tests.support.records import as_lines, task_record

pytestmark = pytest.mark.django_db(transaction=True)

TIMES = 8


def at_once(call: Callable[[], Any]) -> list[Any]:
    """What `TIMES` calls of the same moment answer, or raise."""
    start = threading.Barrier(TIMES)
    answers: list[Any] = []

    def work() -> None:
        start.wait(30)
        try:
            answers.append(call())
        except Exception as error:  # noqa: BLE001 - judged by the test
            answers.append(error)

    threads = [threading.Thread(target=work) for _ in range(TIMES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def host_of_two(site: Site) -> tuple[Client, list[int]]:
    """A host with two accelerators, which speaks when the test does."""
    site.host.stop()
    site.stop_tick()  # the test may be slower than a lease
    client = Client(
        site.hud.url, registration.register(token=registration.create_token(who="t"), name="hand")[1]
    )
    devices = [
        {"name": f"cuda:{number}", "device": "cpu", "arch": "cpu-x86_64", "suites": ["micro"]}
        for number in (0, 1)
    ]
    answer = client.beat({}, {}, devices)
    return client, [int(number) for number in answer["accelerators"].values()]


def test_whatever_is_said_twice_or_out_of_order_counts_once(site: Site) -> None:
    client, (first, second) = host_of_two(site)
    labels = {"host": "hand"}
    run = site.request(labels=labels)

    leases = at_once(lambda: client.claim(first, "one"))
    lease = next(said for said in leases if isinstance(said, Lease))
    assert all(said in (lease, None) for said in leases)
    assert client.claim(first, "one") == lease
    assert client.claim(first, "another") is None
    assert client.claim(second, "another") is None, "the only task is taken"

    with pytest.raises(WrongOffset):  # a piece before the one it follows
        client.log(lease, 6, b"world\n")
    spec = TaskSpec.from_json(lease.spec)
    lines = as_lines(task_record(spec), task_record(spec, "compiled_latency_ms"))
    receipts = at_once(lambda: client.results(lease, lines))  # and before any report of progress
    assert {said["stored"] + said["duplicates"] for said in receipts} == {2}
    assert set(at_once(lambda: client.log(lease, 0, b"hello\n"))) == {6}
    assert set(at_once(lambda: client.log(lease, 6, b"world\n"))) == {12}
    assert client.log(lease, 0, b"hello\nworld\n") == 12
    assert logs.read(only_task(run), 0, 100) == b"hello\nworld\n"
    assert not client.progress(lease, {"done": 2, "total": 1, "phase": "?"})

    assert set(at_once(lambda: client.finish(lease, TaskOutcome("ok", "", "", 1.0)))) == {"done"}
    assert client.finish(lease, TaskOutcome("crashed", "", "", 1.0)) == "done", "the first word counts"
    for late in (
        lambda: client.results(lease, lines),
        lambda: client.log(lease, 12, b"more\n"),
        lambda: client.artifact(lease, "notes", b"x"),
        lambda: client.progress(lease, {}),
    ):
        with pytest.raises(LeaseBroken):
            late()
    (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).status) == (State.SUCCEEDED, "ok")
    assert Measurement.objects.filter(run=run).count() == 2

    for _ in range(3):
        _cancel_races_finish(site, client, first, labels)
    _same_in_other_words(site, client, first, labels)


def _cancel_races_finish(site: Site, client: Client, accelerator: int, labels: dict[str, str]) -> None:
    run = site.request(labels=labels)
    lease = client.claim(accelerator, f"race {run.pk}")
    assert lease
    client.results(lease, as_lines(task_record(TaskSpec.from_json(lease.spec))))

    def cancel() -> None:
        try:
            tasks.cancel(run=run, who="test")
        finally:
            connection.close()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    answers = at_once(lambda: client.finish(lease, TaskOutcome("ok", "", "", 1.0)))
    canceller.join()
    assert set(answers) == {"done"}
    (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).state) == (State.SUCCEEDED, Task.State.DONE)


def _same_in_other_words(site: Site, client: Client, accelerator: int, labels: dict[str, str]) -> None:
    """Cancelled, and at once given back, finished and cancelled: one of these words, and it stays."""
    run = site.request(labels=labels)
    lease = client.claim(accelerator, f"words {run.pk}")
    assert lease
    with pytest.raises(Refused):  # nobody asked for it yet
        client.finish(lease, TaskOutcome("cancelled", "", "", 1.0))
    tasks.cancel(run=run, who="test")
    assert client.progress(lease, {})
    words = iter(["cancelled", "failed", "not_run", "timed_out"] * 2)
    answers = at_once(lambda: client.finish(lease, TaskOutcome(next(words), "", "", 1.0)))
    assert len(set(map(str, answers))) == 1, answers
    (ended,) = site.wait_for_end(run)
    assert ended.state in {State.CANCELLED, State.FAILED, State.TIMED_OUT}
    assert only_task(run).finished
