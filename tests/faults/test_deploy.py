"""F15: web, tick and host are stopped and started anew under load, as a deployment does it."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from hud.accounts.keys import create_key
from hud.models import Measurement, State, Upload
from tests.faults.installation.site import Site
from tests.support.hosts import alive
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE_S = 60
PACE_S = 0.01  # between two requests of a client
AGAIN_S = 0.1  # before a client asks again where nobody answered


@dataclass
class Clients:
    """Readers and one uploader who try again where nobody answers, or where they are told to wait."""

    site: Site
    secret: str
    records: int
    uploads: int = 0  # that were acknowledged
    reads: int = 0
    tried_again: int = 0
    failed: list[str] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, readers: int) -> None:
        self._threads = [threading.Thread(target=self._repeat, args=[self._read]) for _ in range(readers)]
        self._threads.append(threading.Thread(target=self._repeat, args=[self._upload]))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)

    def wait_for_more(self, uploads: int) -> None:
        """Until so many uploads more were taken, and something was read."""
        reads, until = self.reads, self.uploads + uploads
        self.site.wait(lambda: self.reads > reads and self.uploads >= until, "more work of the clients")

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._done.wait(PACE_S):
            work()

    def _read(self) -> None:
        if self._ask("/overview.json", None):
            self.reads += 1

    def _upload(self) -> None:
        number = self.uploads
        body = as_list(*(v3_record(case=f"case_{place}", values=[number]) for place in range(self.records)))
        if self._ask(f"/api/v1/results?commit={number:08x}", body):
            self.uploads += 1

    def _ask(self, path: str, body: bytes | None) -> bool:
        until = time.monotonic() + PATIENCE_S
        headers = {"Authorization": f"Bearer {self.secret}"}
        while time.monotonic() < until:
            request = urllib.request.Request(self.site.hud.url + path, data=body, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answer.read()
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    self.failed.append(f"{path}: {error.code} {error.read()[:300]!r}")
                    return False
            except (OSError, http.client.HTTPException):
                pass
            else:
                return True
            self.tried_again += 1
            time.sleep(
                AGAIN_S
            )  # plays a client between two tries, as `runner upload` does; nothing waits for it
        self.failed.append(f"{path}: no answer within {PATIENCE_S} s")
        return False


@pytest.mark.forgiving
def test_a_deployment_under_load(site: Site) -> None:
    """Nothing fails for those who try again; a running task goes on, its host gives it back when it stops."""
    scaled = site.times.scaled
    secret = create_key(name="k", scopes=["upload", "read"], who="t")[1]
    clients = Clients(site, secret, records=50 if scaled else 800)
    site.control.plan({"1": {"wait_for": "go"}, "2": {"wait_for": "go"}})
    run = site.request()
    site.control.wait_for_start()
    clients.start(readers=2 if scaled else 20)
    try:
        for _ in range(1 if scaled else 5):
            clients.wait_for_more(uploads=1 if scaled else 5)
            site.stop_tick()
            with site.measured("the web: SIGTERM until it answers again"):
                site.hud.stop()
                site.start_web(HUD_UPLOADS_PER_MINUTE="1e9")
            site.start_tick(**site.times.forgiving)
        benchmark = site.control.pids[0]
        assert alive(benchmark), "a deployment of the web is nothing to a benchmark"
        with site.measured("the host: SIGTERM until it has given its task back"):
            site.host.stop()
        assert not alive(benchmark)
        site.host.start()
        site.control.go()
        (ended,) = site.wait_for_end(run)
    finally:
        clients.stop()
    assert (ended.state, site.control.starts) == (State.SUCCEEDED, 2)
    assert clients.failed == []
    assert clients.reads > 0
    assert Upload.objects.count() == clients.uploads > 0
    assert Measurement.objects.exclude(run=run).count() == clients.uploads * clients.records
    print(f"{clients.reads} reads, {clients.uploads} uploads, {clients.tried_again} tries more")
