"""Two nodes behind nginx that share HUD_DATA: either is killed while uploads and logs come in, and nothing
is lost. `make soak` has 1,000 uploads and 100 logs."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from django.core.management import call_command
from django.db import connection

from hud.accounts.keys import create_key
from hud.models import Accelerator, Import, Measurement, Task
from hud.runs import logs
from runner.client.connection import Connection, with_retries
from runner.host.client import Hud as Host
from tests.soak import Figures
from tests.support.claims import attach, request
from tests.support.nginx import nginx
from tests.support.records import as_lines, v3_record
from tests.support.servers import Hud, RedisServer
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx"),
]
T = TypeVar("T")
PATIENCE_S = 120.0
RECORDS, LARGE = 3, 30  # in an upload; one of LARGE records becomes an import job, whose body is a file
LARGE_EVERY, SENDERS, MORE = 10, 4, 15
NODE = {"HUD_MAX_RECORDS": str(LARGE - 1), "HUD_UPLOADS_PER_MINUTE": "1e9", "HUD_LEASE_S": "600"}


@pytest.fixture
def nodes(hud_process: Hud, redis_server: RedisServer, tmp_path: Path) -> Iterator[list[Hud]]:
    second = Hud(tmp_path, hud_process.database_url)
    both = [hud_process, second]
    for node in both:
        node.start(**NODE)
    yield both
    second.stop()


class Clients:
    """Upload and grow logs through nginx, until each has done its least and `stop` is set."""

    def __init__(self, url: str, tasks: int) -> None:
        self.stop, self._lock = threading.Event(), threading.Lock()
        self._url, self.answered, self.uploads = url, 0, itertools.count()
        self.key = create_key(name="k", scopes=["upload", "read"], who="t")[1]
        self.accelerators = [attach(f"h{number}") for number in range(tasks)]
        for accelerator in self.accelerators:
            request(labels={"host": accelerator.host.name})

    def _ask(self, call: Callable[[], T]) -> T:
        answer = with_retries(call, patience_s=PATIENCE_S)
        with self._lock:
            self.answered += 1
        return answer

    def upload(self, at_least: int) -> int:
        """Return how many uploads were answered."""
        hud = Connection(self._url, self.key)
        count = 0
        while count < at_least or not self.stop.is_set():
            number = next(self.uploads)
            records = LARGE if number % LARGE_EVERY == 0 else RECORDS
            body = as_lines(*(v3_record(case=f"c{number}-{place}") for place in range(records)))
            address = f"/api/v1/results?filename={number}.jsonl&commit={number:08x}"
            self._ask(partial(hud.call, "POST", address, body))
            count += 1
        return count

    def grow_log(self, accelerator: Accelerator) -> bytes:
        """Return the log that was answered for."""
        key = create_key(name="h", scopes=["host"], who="t", host=accelerator.host)[1]
        connection.close()
        hud = Host(self._url, key)
        lease = self._ask(lambda: hud.claim(accelerator.pk, "n"))
        assert lease
        log = b""
        while not log or not self.stop.is_set():
            piece = f"{accelerator.pk} {len(log)}\n".encode()
            assert self._ask(partial(hud.log, lease, len(log), piece)) == len(log) + len(piece)
            log += piece
        return log


@pytest.mark.parametrize(("uploads", "tasks"), [(40, 2), pytest.param(1000, 100, marks=pytest.mark.soak)])
def test_either_node_is_killed_and_nothing_is_lost(
    nodes: list[Hud], tmp_path: Path, figures: Figures, uploads: int, tasks: int
) -> None:
    with nginx(tmp_path, nodes) as url, ThreadPoolExecutor(SENDERS + tasks) as pool:
        clients = Clients(url, tasks)
        sent = [pool.submit(clients.upload, uploads // SENDERS) for _ in range(SENDERS)]
        grown = [pool.submit(clients.grow_log, accelerator) for accelerator in clients.accelerators]
        try:
            for node in nodes:
                wait_for_more(clients)
                node.kill()
                wait_for_more(clients)
                node.start(**NODE)
                wait_for_more(clients)
        finally:
            clients.stop.set()
        count = sum(each.result() for each in sent)
        logs_sent = [each.result() for each in grown]
    call_command("imports", "--once")
    assert set(Import.objects.values_list("state", flat=True)) == {"done"}
    large = (count + LARGE_EVERY - 1) // LARGE_EVERY
    assert Import.objects.count() == large
    assert Measurement.objects.count() == large * LARGE + (count - large) * RECORDS
    for accelerator, log in zip(clients.accelerators, logs_sent, strict=True):
        assert logs.read(Task.objects.get(accelerator=accelerator), 0, 10**8) == log
    figures.note("uploads, none lost", count, least=uploads)
    figures.note(f"bytes of {tasks} logs, none lost", sum(map(len, logs_sent)))


def wait_for_more(clients: Clients) -> None:
    before = clients.answered
    wait_for(lambda: clients.answered >= before + MORE, "further answers")
