"""The clock of the dashboard's machine jumps while a task runs, and back.

libfaketime moves the clock of every process of `make up`, PostgreSQL's too.
"""

from __future__ import annotations

import http.client
import http.cookiejar
import json
import re
import shutil
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hud.models import TERMINAL
from hud.server import embedded
from tests.server.up import Up, with_stand_in
from tests.support.records import as_list, v3_record
from tests.support.waiting import wait_for

LIBRARIES = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
LASTS_S = 60  # a jump: longer than a lease, and than the grace period after a gap


@pytest.fixture
def up() -> Iterator[Up]:
    folder = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    up = Up(folder)
    yield up
    if up.process:
        up.stop()
    shutil.rmtree(folder)


@pytest.mark.soak
@pytest.mark.skipif(
    not LIBRARIES, reason="libfaketime is not installed (Debian: apt-get install libfaketime)"
)
def test_the_clock_of_the_dashboard_jumps_and_comes_back(up: Up) -> None:
    clock = up.folder / "clock"
    _set(clock, "+0")
    variables = {
        **with_stand_in(up.folder, waits=True),
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    up.start(**variables)
    caller = _Caller(up, up.create_key("upload,run,read"))
    control = up.folder / "control"
    for number, jump in enumerate(("+2h", "-2h", "+400d"), start=1):
        session = _sign_in(up)
        (control / "go").unlink(missing_ok=True)
        run = caller.request_run()
        wait_for((control / f"pid-{2 * number - 1}").exists, "the benchmark", 90)
        _set(clock, jump)
        time.sleep(LASTS_S)  # the fault's length is what is tested
        state, attempts = _task(up, run)
        uploaded = caller.upload(f"{number}1")
        signed_in = "/login/" not in session.open(f"http://127.0.0.1:{up.port}/keys/").url
        ready = caller.call("GET", "/readyz")[1]
        (control / "go").touch()
        ended, logs = caller.end_of(run), len(list((up.data / "tasklogs").rglob("*")))
        _set(clock, "+0")
        time.sleep(LASTS_S)
        later = caller.request_run()
        next_ended = caller.end_of(later)
        print(
            f"\n{jump}: after {LASTS_S} s the task is {state} in attempt {attempts}, upload {uploaded}, "
            f"session {'kept' if signed_in else 'expired'}, readyz {ready['status']!r}; run {ended}, "
            f"logs {logs}; clock back: upload {caller.upload(f'{number}2')}, run {next_ended}, "
            f"readyz {caller.call('GET', '/readyz')[1]['status']!r}, triggers {_triggers(up)}"
        )
        assert (state, attempts, uploaded, ended) == ("running", 1, 201, "succeeded")
        assert next_ended == "succeeded"
        assert logs


class _Caller:
    def __init__(self, up: Up, key: str) -> None:
        self.up = up
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def request_run(self) -> int:
        body = json.dumps({"suite": "micro", "cases": ["layer_norm"], "device": "cpu"}).encode()
        status, run = self.call("POST", "/api/v1/runs", body)
        assert status == 201, run
        return int(run["id"])

    def end_of(self, run: int) -> str:
        wait_for(lambda: self._state(run) in TERMINAL, f"the end of run {run}", 180)
        return self._state(run)

    def _state(self, run: int) -> str:
        return str(self.call("GET", f"/api/v1/runs/{run}")[1]["state"])

    def upload(self, commit: str) -> int:
        return self.call("POST", f"/api/v1/results?commit={commit}", as_list(v3_record()))[0]

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        client = http.client.HTTPConnection("127.0.0.1", self.up.port, timeout=60)
        try:
            client.request(method, path, body, self.headers)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            client.close()


def _set(clock: Path, offset: str) -> None:
    draft = clock.with_suffix(".new")
    draft.write_text(offset + "\n")
    draft.chmod(0o644)
    draft.replace(clock)


def _sign_in(up: Up) -> urllib.request.OpenerDirector:
    # the client's clock is right: it keeps cookies whatever the server takes for the time
    policy = http.cookiejar.DefaultCookiePolicy()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar(policy)))
    address = f"http://127.0.0.1:{up.port}/login/"
    form = opener.open(address).read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
    assert token
    account = json.loads((up.data / "operator.json").read_text())
    body = urllib.parse.urlencode({**account, "csrfmiddlewaretoken": token[1], "next": "/keys/"})
    assert opener.open(address, body.encode()).status == 200
    return opener


def _task(up: Up, run: int) -> tuple[str, int]:
    state, attempt = _row(up, f"SELECT state, attempt FROM hud_task WHERE run_id = {run}")
    return state, attempt


def _triggers(up: Up) -> int:
    return int(_row(up, "SELECT count(*) FROM hud_scheduletrigger")[0])


def _row(up: Up, statement: str) -> Any:
    run = embedded.run_folder(up.data)
    with psycopg.connect(host=str(run), port=embedded.PORT, user="hud", dbname="hud") as connection:
        return connection.execute(statement).fetchone()
