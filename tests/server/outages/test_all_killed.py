"""kill -9 of everything that `make up` started, again and again, under uploads and runs.

Nothing that was acknowledged is lost, nothing is stored twice, and each restart comes to Ready, also where
the lock file of PostgreSQL's socket names another process that lives. `SOAK_KILLS` says how often.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hud.models import TERMINAL
from hud.server import embedded
from tests.faults.installation.site import tree
from tests.server.up import Up, with_stand_in
from tests.support.records import as_list, v3_record
from tests.support.waiting import wait_for

ROUNDS = int(os.environ.get("SOAK_KILLS", "20"))
PLANTED = 3  # of the rounds
SENDERS, RECORDS = 3, 50
LONGEST_S = 4.0  # of a life under load


@pytest.fixture
def up() -> Iterator[Up]:
    folder = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    up = Up(folder)
    yield up
    if up.process:
        up.stop()
    shutil.rmtree(folder)


class Load:
    """Clients that upload and request runs for as long as the web answers."""

    def __init__(self, up: Up, key: str) -> None:
        self.up, self.key = up, key
        self.acknowledged: dict[str, int] = {}  # name of an upload → its id
        self.unknown: set[str] = set()  # sent, but never answered
        self.runs: list[int] = []
        self.refused: Counter[int] = Counter()
        self._threads: list[threading.Thread] = []

    def begin(self, number: int) -> None:
        """Start the clients of a round."""
        self.ended = False
        work = [partial(self._send, f"{number:02x}{sender}") for sender in range(SENDERS)]
        self._threads = [threading.Thread(target=one) for one in work]
        self._threads.append(threading.Thread(target=self._request))
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        self.ended = True
        for thread in self._threads:
            thread.join()

    def _send(self, prefix: str) -> None:
        count = 0
        while not self.ended:
            count += 1
            name = f"{prefix}{count:04x}"
            self.unknown.add(name)
            status, receipt = self.post(name)
            if status == 201:
                self.acknowledged[name] = receipt["id"]
                self.unknown.discard(name)
            elif status:
                self.refused[status] += 1
            else:
                return

    def post(self, name: str) -> tuple[int, Any]:
        body = as_list(
            *(v3_record(case=f"case_{number}", values=[number, int(name, 16)]) for number in range(RECORDS))
        )
        return self.call("POST", f"/api/v1/results?commit={name}", body)

    def _request(self) -> None:
        body = json.dumps({"suite": "micro", "cases": ["layer_norm"], "device": "cpu"}).encode()
        status, run = self.call("POST", "/api/v1/runs", body)
        if status == 201:
            self.runs.append(run["id"])

    def states(self) -> list[str]:
        """Return the state of each requested run."""
        return [self.call("GET", f"/api/v1/runs/{run}")[1]["state"] for run in self.runs]

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Return the status and the answer; 0 where there was none."""
        client = http.client.HTTPConnection("127.0.0.1", self.up.port, timeout=60)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            client.close()


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_or_doubled(up: Up) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    planted = set(chance.sample(range(ROUNDS), min(PLANTED, ROUNDS)))
    variables = {**with_stand_in(up.folder), "HUD_UPLOADS_PER_MINUTE": "1e9"}
    up.start(**variables)
    load = Load(up, up.create_key("upload,run,read"))
    for number in range(ROUNDS):
        load.begin(number)
        threading.Event().wait(chance.uniform(0.3, LONGEST_S))  # the moment is the test's subject
        _kill_all(up, chance)
        load.wait()
        if number in planted:
            _plant_foreign_pid(up)
        up.start(**variables)
    wait_for(lambda: all(state in TERMINAL for state in load.states()), "the end of all runs", 300)
    lost, halves = _check(up, load)
    resent = {name: load.post(name) for name in (*load.acknowledged, *load.unknown)}
    print(
        f"{ROUNDS} of {ROUNDS} restarts, {len(planted)} with a foreign pid (seed {seed}); "
        f"{len(load.acknowledged)} receipts, {len(lost)} lost, {len(halves)} in part; "
        f"{len(load.unknown)} without an answer; refused {dict(load.refused)}; "
        f"runs {dict(Counter(load.states()))}"
    )
    assert (lost, halves) == ([], [])
    assert all(resent[name][0] == 200 for name in load.acknowledged), "the same content is a duplicate"
    assert all(status in {200, 201} for status, _receipt in resent.values())
    assert _rows(up) == dict.fromkeys(resent, RECORDS), "each upload once"
    assert len(load.runs) >= ROUNDS // 2


def _kill_all(up: Up, chance: random.Random) -> None:
    """Kill every process in any order, what they start meanwhile too."""
    assert up.process
    while found := list(
        {*up.processes(), *(pid for pid in tree(up.process.pid) if up.process.poll() is None)}
    ):
        chance.shuffle(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        up.process.wait()
    up.process = None


def _plant_foreign_pid(up: Up) -> None:
    """Have the lock file of the socket name a process that lives: this one."""
    lock = embedded.run_folder(up.data) / f".s.PGSQL.{embedded.PORT}.lock"
    rest = lock.read_text().splitlines()[1:] if lock.exists() else []
    lock.write_text("\n".join([str(os.getpid()), *rest]) + "\n")


def _check(up: Up, load: Load) -> tuple[list[str], list[str]]:
    """Return the acknowledged uploads that are not there, and those of which a part is."""
    rows = _rows(up)
    lost = [name for name in load.acknowledged if name not in rows]
    return lost, [name for name, count in rows.items() if count != RECORDS]


def _rows(up: Up) -> dict[str, int]:
    """Return the stored measurements of each upload."""
    run = embedded.run_folder(up.data)
    with psycopg.connect(host=str(run), port=embedded.PORT, user="hud", dbname="hud") as connection:
        return dict(
            connection.execute(
                """SELECT r.commit, count(*) FROM hud_measurement m JOIN hud_run r ON r.id = m.run_id
                WHERE r.upload_id IS NOT NULL GROUP BY r.commit"""
            ).fetchall()
        )


@pytest.mark.soak
def test_a_copy_of_the_data_folder_is_a_backup(up: Up) -> None:
    variables = with_stand_in(up.folder)
    up.start(**variables)
    load = Load(up, up.create_key("upload,run,read"))
    assert load.post("a1")[0] == 201
    body = json.dumps({"suite": "micro", "cases": ["layer_norm"], "device": "cpu"}).encode()
    load.runs = [load.call("POST", "/api/v1/runs", body)[1]["id"]]
    wait_for(lambda: load.states() == ["succeeded"], "the run", 120)
    exported, kept = _get(up, "/api/v1/export"), _get(up, f"/api/v1/runs/{load.runs[0]}/artifacts")
    assert up.stop() == 0
    shutil.copytree(up.data, up.folder / "copy", symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(up.data)
    up.data = up.folder / "copy"
    assert "not attached" not in up.start(**variables)
    assert _get(up, "/api/v1/export") == exported
    assert _get(up, f"/api/v1/runs/{load.runs[0]}/artifacts") == kept
    artifact = json.loads(kept)["items"][0]
    assert _get(up, f"/api/v1/runs/{load.runs[0]}/artifacts/{artifact['id']}")
    assert load.post("a1")[0] == 200


def _get(up: Up, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{up.port}{path}", timeout=60) as answer:
        return bytes(answer.read())
