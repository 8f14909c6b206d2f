"""Many clients at once: everything ends stored, told to wait, or told so already."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from hud.accounts.keys import create_key
from hud.models import Experiment, Measurement, Run, Series, Upload
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud
from tests.support.waiting import PATIENCE_S

CLIENTS, POSTS, ROWS = 50, 20, 200


class Client:
    """Posts one body after the other, each until it is stored."""

    def __init__(self, hud: Hud, secret: str, number: int) -> None:
        self.hud = hud
        self.headers = {"Authorization": f"Bearer {secret}"}
        self.number = number
        self.answers: Counter[int] = Counter()

    def work(self) -> None:
        for post in range(POSTS):
            body = as_list(*(v3_record(case=f"case_{row}", values=[row, post]) for row in range(ROWS)))
            while not self._sent(body, f"commit={self.number}x{post}"):
                pass

    def _sent(self, body: bytes, query: str) -> bool:
        """False where it is to come again, after the time that it was told."""
        client = http.client.HTTPConnection("127.0.0.1", self.hud.port, timeout=PATIENCE_S)
        try:
            client.request("POST", f"/api/v1/results?{query}", body, self.headers)
            answer = client.getresponse()
            content = json.loads(answer.read())
        finally:
            client.close()
        self.answers[answer.status] += 1
        if answer.status == 429:
            time.sleep(float(answer.headers["Retry-After"]))  # as a client is told to
            return False
        assert answer.status in {200, 201}, content
        assert content["stored"] + content["duplicates"] == ROWS
        return True


@pytest.mark.soak
@pytest.mark.parametrize("per_minute", ["1e9", "600"])
def test_a_burst_of_clients_is_stored_whole(hud_process: Hud, per_minute: str) -> None:
    hud_process.start(HUD_UPLOADS_PER_MINUTE=per_minute, WEB_CONCURRENCY="2")
    secret = create_key(name="k", scopes=["upload"], who="t")[1]
    clients = [Client(hud_process, secret, number) for number in range(CLIENTS)]
    started = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(client.work) for client in clients]:
            done.result()
    seconds = time.monotonic() - started
    answers = sum((client.answers for client in clients), Counter())
    print(f"{CLIENTS} clients x {POSTS} posts of {ROWS} rows in {seconds:.0f} s; answers {dict(answers)}")
    assert set(answers) <= {200, 201, 429}
    assert Measurement.objects.count() == CLIENTS * POSTS * ROWS
    assert Upload.objects.count() == Run.objects.count() == CLIENTS * POSTS
    assert Experiment.objects.count() == Series.objects.count() == ROWS
