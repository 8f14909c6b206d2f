"""kill -9 of the web in the middle of uploads: each is stored whole or not at all, and may be sent again."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hud.accounts.keys import create_key
from hud.models import Experiment, IdempotencyKey, Measurement, Run, Upload
from tests.faults.installation.invariants import violations
from tests.support.hosts import alive
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud, RedisServer, nobody_else_asks
from tests.support.waiting import wait_for

RECORDS = 1000
MOMENTS, MANY_MOMENTS = 3, 200
UNDISTURBED = ("a", "b", "c")  # sent first, to learn how long an upload takes
MASTER_SHARE = 0.2  # of the kills; the others hit the worker, which is quicker to come back


@dataclass
class Sender:
    """A client that sends one upload, whose commit is its name."""

    hud: Hud
    secret: str
    name: str
    idempotency_key: str = ""
    status: int | None = None  # None: there was no answer
    receipt: dict[str, Any] = field(default_factory=dict)

    def send(self) -> None:
        headers = {"Authorization": f"Bearer {self.secret}"}
        if self.idempotency_key:
            headers["Idempotency-Key"] = self.idempotency_key
        client = http.client.HTTPConnection("127.0.0.1", self.hud.port, timeout=60)
        self.status = None
        try:
            client.request("POST", f"/api/v1/results?commit={self.name}", body_of(self.name), headers)
            answer = client.getresponse()
            self.receipt = json.loads(answer.read())
            self.status = answer.status
        except (OSError, http.client.HTTPException):
            pass
        finally:
            client.close()


def body_of(name: str) -> bytes:
    """The same experiments under every name, with other values."""
    shift = int(name, 16) % 997
    return as_list(*(v3_record(case=f"case_{number}", values=[number, shift]) for number in range(RECORDS)))


def time_of(sender: Sender) -> float:
    """How long an upload takes that nobody disturbs, in seconds."""
    started = time.monotonic()
    sender.send()
    check_whole_or_nothing(sender)
    return time.monotonic() - started


def workers_of(hud: Hud) -> list[int]:
    return [int(word) for word in Path(f"/proc/{hud.pid}/task/{hud.pid}/children").read_text().split()]


def kill_web(hud: Hud, *, master: bool) -> None:
    """kill -9 of the worker, whose master makes a new one, or of the master, which is started anew."""
    workers = workers_of(hud)
    if master:
        hud.kill()
        wait_for(lambda: not any(map(alive, workers)), "the workers' end")
        hud.start()
    else:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        wait_for(lambda: set(workers_of(hud)) - set(workers), "a new worker")


def check_whole_or_nothing(sender: Sender) -> None:
    """What an upload left behind: everything, which the receipt says, or nothing."""
    stored = Measurement.objects.filter(run__commit=sender.name).count()
    runs = Run.objects.filter(commit=sender.name).count()
    keys = IdempotencyKey.objects.filter(text=sender.idempotency_key).count()
    upload = Upload.objects.filter(parameters__commit=sender.name).first()
    if upload is None:
        assert (stored, runs, keys) == (0, 0, 0)
        assert sender.status is None, "an upload that was acknowledged is gone"
    else:
        assert (stored, runs, keys) == (RECORDS, 1, 1 if sender.idempotency_key else 0)
        assert upload.receipt["stored"] == RECORDS
        if sender.status is not None:
            assert sender.receipt["run_ids"] == upload.receipt["run_ids"]
            assert sender.receipt["stored"] + sender.receipt["duplicates"] == RECORDS


def test_half_a_request_keeps_no_orphan_alive(hud_process: Hud) -> None:
    hud_process.start()
    workers = workers_of(hud_process)
    with socket.create_connection(("127.0.0.1", hud_process.port)) as client:
        client.sendall(b"POST /api/v1/results HTTP/1.1\r\nHost: 127")
        kill_web(hud_process, master=True)
        assert not any(map(alive, workers))


@pytest.mark.parametrize(
    "moments", [pytest.param(MOMENTS), pytest.param(MANY_MOMENTS, marks=pytest.mark.soak)]
)
def test_uploads_are_stored_whole_or_not_at_all(
    hud_process: Hud, redis_server: RedisServer, data: Path, moments: int
) -> None:
    hud_process.start(HUD_UPLOADS_PER_MINUTE="1e9")
    secret = create_key(name="k", scopes=["upload"], who="t")[1]
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    usual_s = min(time_of(Sender(hud_process, secret, name)) for name in UNDISTURBED)
    answered = 0
    for moment in range(1, moments + 1):
        sender = Sender(
            hud_process, secret, f"{moment:04x}", f"key {moment}" if chance.random() < 0.5 else ""
        )
        sending = threading.Thread(target=sender.send)
        sending.start()
        time.sleep(chance.uniform(0, 1) * usual_s)  # the moment is the test's subject
        kill_web(hud_process, master=chance.random() < MASTER_SHARE)
        sending.join()
        wait_for(nobody_else_asks, "the end of what the killed web had begun")
        check_whole_or_nothing(sender)
        answered += sender.status is not None
        sender.send()
        assert sender.status in {200, 201}, f"moment {moment}, seed {seed}"
        check_whole_or_nothing(sender)
    assert Measurement.objects.count() == (moments + len(UNDISTURBED)) * RECORDS
    assert Upload.objects.count() == Run.objects.count() == moments + len(UNDISTURBED)
    assert Experiment.objects.count() == RECORDS
    assert violations(controls=[], keys=[secret], folders=[data]) == []
    print(f"{moments} kills in uploads of {usual_s:.2f} s; {answered} of them were answered all the same")
