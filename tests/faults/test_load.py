"""A day's load at once: hosts that run tasks, readers, and results that come in all the time.

`SOAK_MINUTES` says for how long (20). Memory counts as flat where its last third is at most a tenth above the
middle one; shorter runs only print it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from hud.accounts.keys import create_key
from hud.models import Experiment, Run, State, Task
from tests.bench.processes import memory_mib
from tests.bench.processes import tree as processes_below
from tests.faults.installation.site import Site, Times
from tests.soak import Figures
from tests.support.records import as_list, v3_record
from tests.support.servers import end_process, start_process

pytestmark = [pytest.mark.soak, pytest.mark.alone, pytest.mark.django_db(transaction=True)]

MINUTES = float(os.environ.get("SOAK_MINUTES", "20"))
HOSTS, RUN_EVERY_S = 20, 40
READERS, PAGE_EVERY_S = 50, 5
UPLOADERS, UPLOAD_EVERY_S, RECORDS = 5, 5, 100  # 100 measurements a second
SAMPLE_EVERY_S = 5
CLAIM_TO_START_S = 2
LONG_ENOUGH_MINUTES = 10  # for a statement on memory


@dataclass
class Load:
    """Threads that work until `stop`, with what they saw."""

    site: Site
    key: str
    port: int = 0  # of a proxy before the site
    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[str] = field(default_factory=list)
    page_s: list[float] = field(default_factory=list)
    upload_s: list[float] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of uploads
    answered: list[int] = field(default_factory=list)  # measurements that each upload stored
    memory_mib: dict[str, list[float]] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)

    def every(self, seconds: float, work: Callable[[], None], *, first_s: float = 0.0) -> None:
        """Do some work in a thread of its own, at this pace."""

        def loop() -> None:
            due = time.monotonic() + first_s
            while not self.stop.wait(max(0.0, due - time.monotonic())):
                try:
                    work()
                except Exception as error:  # noqa: BLE001 — counted as an error of the load
                    self.errors.append(f"{type(error).__name__}: {error}")
                due += seconds

        self._threads.append(threading.Thread(target=loop))
        self._threads[-1].start()

    def join(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def read(self, pages: list[str]) -> None:
        began = time.monotonic()
        status, _content = self._call("GET", random.choice(pages))
        self.page_s.append(time.monotonic() - began)
        if status != 200:
            self.errors.append(f"a page answered {status}")

    def upload(self) -> None:
        number = next(self.numbers)
        body = as_list(*(v3_record(case=f"case_{row}", values=[row, number]) for row in range(RECORDS)))
        began = time.monotonic()
        status, content = self._call("POST", f"/api/v1/results?commit={number:x}", body)
        self.upload_s.append(time.monotonic() - began)
        if status == 201:
            self.answered.append(json.loads(content)["stored"])
        else:
            self.errors.append(f"an upload answered {status}: {content[:200]!r}")

    def request(self, host: str) -> None:
        wanted = {"suite": "micro", "cases": ["layer_norm"], "device": "cpu", "labels": {"host": host}}
        status, content = self._call("POST", "/api/v1/runs", json.dumps(wanted).encode())
        if status != 201:
            self.errors.append(f"a run's request answered {status}: {content[:200]!r}")

    def sample(self, roots: dict[str, int]) -> None:
        for name, root in roots.items():
            found = 0.0
            for process in processes_below(root):
                with suppress(OSError, ValueError):  # it has just ended
                    found += memory_mib(process, "VmRSS")
            self.memory_mib.setdefault(name, []).append(found)

    def _call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", self.port or self.site.hud.port, timeout=60)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()


@pytest.mark.parametrize("times", [Times()])
def test_hosts_readers_and_uploads_for_a_while(site: Site, figures: Figures) -> None:
    site.hud.stop()
    site.start_web(WEB_CONCURRENCY="2", HUD_UPLOADS_PER_MINUTE="1e9", HUD_RUNS_PER_MINUTE="1e9")
    names = ["here", *(f"host-{number}" for number in range(1, HOSTS))]
    for name in names[1:]:
        site.attach(name)
    load = Load(site, create_key(name="load", scopes=["upload", "run", "read"], who="t")[1])
    load.upload()
    pages = ["/", "/suites/", "/runs/", "/hosts/", "/suites/PyTorch gpt-fast benchmark/".replace(" ", "%20")]
    pages += [f"/experiments/{pk}/" for pk in Experiment.objects.values_list("pk", flat=True)[:20]]
    pages = [page for page in pages if load._call("GET", page)[0] == 200]
    with ExitStack() as stack:
        roots = {"web": site.hud.pid, "agents": site.host.pid}
        for command in ("judge", "imports"):
            process = _start(site, command)
            stack.callback(end_process, process, signal.SIGTERM)
            roots[command] = process.pid
        for number, name in enumerate(names):
            first_s = number * RUN_EVERY_S / HOSTS
            load.every(RUN_EVERY_S, partial(load.request, name), first_s=first_s)
        for number in range(READERS):
            load.every(PAGE_EVERY_S, lambda: load.read(pages), first_s=number * PAGE_EVERY_S / READERS)
        for number in range(UPLOADERS):
            load.every(UPLOAD_EVERY_S, load.upload, first_s=number * UPLOAD_EVERY_S / UPLOADERS)
        load.every(SAMPLE_EVERY_S, lambda: load.sample(roots))
        load.stop.wait(MINUTES * 60)
        load.join()
        runs = list(Run.objects.filter(request__isnull=False))
        ended = Counter(run.state for run in site.wait_for_end(*runs))
    waits_s = _seconds_from_claim_to_start(site)
    growth = {name: _growth(values) for name, values in load.memory_mib.items()}
    _print(load, len(pages), ended, waits_s, growth)
    figures.note("errors of pages, uploads, runs", len(load.errors), most=0)
    figures.note(f"pages of {READERS} readers", len(load.page_s))
    figures.note("measurements", sum(load.answered))
    figures.note("page, p95", _percentile(load.page_s, 95), "s")
    figures.note("upload, p95", _percentile(load.upload_s, 95), "s")
    assert set(ended) == {State.SUCCEEDED}
    assert set(load.answered) == {RECORDS}
    waited_s = _percentile(waits_s, 95)
    figures.note(f"claim to start of {len(waits_s)} tasks, p95", waited_s, "s", most=CLAIM_TO_START_S)
    most = 10 if MINUTES >= LONG_ENOUGH_MINUTES else None
    for name, share in growth.items():
        figures.note(f"memory of {name}", 100 * share, "%", most=most)


def _start(site: Site, command: str) -> subprocess.Popen[bytes]:
    log = Path(site.folder / f"{command}.log")
    return start_process([sys.executable, "manage.py", command, "--skip-checks"], log, site.environment)


def _seconds_from_claim_to_start(site: Site) -> list[float]:
    """Return how long each benchmark took to begin from when its task was claimed: a host runs one at a time,
    so its n-th claim is its n-th start."""
    found = []
    for name, control in site.controls.items():
        tasks = Task.objects.filter(accelerator__host__name=name, state=Task.State.DONE).order_by("started")
        starts = [(control.folder / f"pid-{number + 1}").stat().st_mtime for number in range(control.starts)]
        claims = [task.started.timestamp() for task in tasks if task.started]
        found += [start - claim for claim, start in zip(claims, starts, strict=True)]
    return found


def _growth(values: list[float]) -> float:
    """Return by which share the last third is above the middle one, each at its least, without tasks."""
    third = max(1, len(values) // 3)
    return min(values[-third:]) / min(values[third : 2 * third]) - 1


def _percentile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def _print(
    load: Load, pages: int, ended: Counter[Any], waits_s: list[float], growth: dict[str, float]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        connections = cursor.fetchone()[0]
    print(f"\n{MINUTES:g} min, {HOSTS} hosts, {READERS} readers of {pages} pages, {connections} connections")
    print(f"errors {len(load.errors)} {Counter(load.errors).most_common(5)}; runs {dict(ended)}")
    print(f"{len(load.page_s)} pages: {_times(load.page_s)}")
    print(f"{len(load.upload_s)} uploads, {sum(load.answered)} measurements: {_times(load.upload_s)}")
    print(f"{len(waits_s)} tasks from claim to start: {_times(waits_s)}")
    for name, values in load.memory_mib.items():
        print(
            f"memory of {name}: first {values[0]:.0f}, last {values[-1]:.0f}, most {max(values):.0f} MiB, "
            f"last third over middle third {growth[name]:+.1%}"
        )


def _times(values: list[float]) -> str:
    middle, most = _percentile(values, 50), _percentile(values, 95)
    return f"p50 {middle:.2f}, p95 {most:.2f}, longest {max(values):.2f} s"
