"""Two nodes behind nginx that share HUD_DATA: either is killed while uploads and logs come in, and nothing
is lost. `make soak` has 1,000 uploads and 100 logs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from django.core.management import call_command

from hud.accounts.keys import create_key
from hud.models import Import, Measurement, Task
from hud.runs import logs
from runner.host import client
from runner.host.client import with_retries
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
PIECES = 40
NODE = {"HUD_MAX_RECORDS": str(LARGE - 1), "HUD_UPLOADS_PER_MINUTE": "1e9", "HUD_LEASE_S": "600"}


@pytest.fixture
def nodes(hud_process: Hud, redis_server: RedisServer, tmp_path: Path) -> Iterator[list[Hud]]:
    second = Hud(tmp_path, hud_process.database_url)
    both = [hud_process, second]
    for node in both:
        node.start(**NODE)
    yield both
    second.stop()


class Progress:
    """How many calls have been answered."""

    def __init__(self) -> None:
        self._lock, self.count = threading.Lock(), 0

    def made(self, call: Callable[[], T]) -> T:
        answer = with_retries(call, patience_s=PATIENCE_S)
        with self._lock:
            self.count += 1
        return answer


@pytest.mark.parametrize(("uploads", "tasks"), [(40, 3), pytest.param(1000, 100, marks=pytest.mark.soak)])
def test_either_node_is_killed_and_nothing_is_lost(
    nodes: list[Hud], tmp_path: Path, uploads: int, tasks: int
) -> None:
    key = create_key(name="k", scopes=["upload", "read"], who="t")[1]
    accelerators = [attach(f"h{number}") for number in range(tasks)]
    keys = [create_key(name="h", scopes=["host"], who="t", host=each.host)[1] for each in accelerators]
    for each in accelerators:
        request(labels={"host": each.host.name})
    progress = Progress()

    def upload(number: int) -> None:
        records = LARGE if number % 10 == 0 else RECORDS
        body = as_lines(*(v3_record(case=f"c{number}-{place}") for place in range(records)))
        hud = client.Hud(url, key)
        progress.made(lambda: hud.upload(f"{number}.jsonl", body, {"commit": f"{number:08x}"}))

    def grow_log(number: int) -> None:
        hud = client.Hud(url, keys[number])
        lease = progress.made(lambda: hud.claim(accelerators[number].pk, f"n{number}"))
        assert lease
        size = 0
        for place in range(PIECES):
            piece = f"{number} {place}\n".encode()
            size = progress.made(lambda offset=size, piece=piece: hud.log(lease, offset, piece))

    total = uploads + tasks * (1 + PIECES)
    with nginx(tmp_path, nodes) as url, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(upload, number) for number in range(uploads)]
        calls += [pool.submit(grow_log, number) for number in range(tasks)]
        for part, node in enumerate(nodes, start=1):
            wait_for(lambda part=part: progress.count >= part * total // 4, "some answers")
            node.kill()
            before = progress.count
            wait_for(lambda before=before: progress.count >= before + total // 8, "answers of the other node")
            node.start(**NODE)
        for call in calls:
            call.result()
    call_command("imports", "--once")
    assert set(Import.objects.values_list("state", flat=True)) == {"done"}
    large = (uploads + 9) // 10
    assert Import.objects.count() == large
    assert Measurement.objects.count() == large * LARGE + (uploads - large) * RECORDS
    for number, accelerator in enumerate(accelerators):
        task = Task.objects.get(accelerator=accelerator)
        whole = "".join(f"{number} {place}\n" for place in range(PIECES)).encode()
        assert logs.read(task, 0, 10**6) == whole
    print(f"{uploads} uploads, {tasks} logs of {PIECES} pieces, two kills: 0 lost")
