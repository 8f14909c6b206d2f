"""Senders that promise large bodies and send one byte hold up nobody: neither uploads nor hosts."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import orjson
import pytest

from hud.accounts.keys import create_key
from runner.schema.protocol import PROTOCOL
from tests.soak import Figures
from tests.support.factories import create_host
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud, RedisServer

PROMISED_BYTES = 64 * 2**20
UPLOAD_BYTES = 300_000
UPLOADERS = 4


def post(hud: Hud, path: str, secret: str, body: bytes) -> tuple[int, float]:
    """Status and seconds."""
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{hud.url}/api/v1/{path}", body, headers)
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, time.monotonic() - began
    except urllib.error.HTTPError as error:
        return error.code, time.monotonic() - began
    except OSError:
        return 0, time.monotonic() - began


def upload_of(number: int) -> bytes:
    """An upload of 300 kB with one record."""
    record = v3_record(case=f"case_{number}")
    return as_list(record).ljust(UPLOAD_BYTES)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("sockets", "uploads"), [(40, 12), pytest.param(200, 200, marks=pytest.mark.soak)])
def test_stalled_senders(
    hud_process: Hud, redis_server: RedisServer, figures: Figures, sockets: int, uploads: int
) -> None:
    hud_process.start(HUD_UPLOADS_PER_MINUTE="1e9")
    secret = create_key(name="k", scopes=["upload"], who="t")[1]
    host = create_key(name="h", scopes=["host"], who="t", host=create_host("far"))[1]
    senders = (("without a key", ""), ("with a wrong key", "hud_wrong"), ("with a key", secret))
    for turn, (sender, key) in enumerate(senders):
        numbers = range(turn * uploads, (turn + 1) * uploads)
        stored, beats = beside_stalled(hud_process, key, sockets, secret, numbers, host=host)
        for what, answers in (("uploads", stored), ("heartbeats", beats)):
            seconds = sorted(each for _status, each in answers)
            wrong = sum(status not in {200, 201} for status, _seconds in answers)
            figures.note(f"{sender}: errors of {len(answers)} {what}", wrong, most=0)
            figures.note(f"{sender}: longest of the {what}", seconds[-1], "s")


Answers = list[tuple[int, float]]


def beside_stalled(
    hud: Hud, key: str, sockets: int, uploader: str, numbers: range, *, host: str
) -> tuple[Answers, Answers]:
    """Stall so many senders with a key; return the answers to uploads and to heartbeats meanwhile."""
    beat = orjson.dumps(
        {"protocol": PROTOCOL, "sent_at": time.time(), "facts": {}, "labels": {}, "devices": []}
    )
    head = f"POST /api/v1/results HTTP/1.1\r\nHost: localhost\r\nContent-Length: {PROMISED_BYTES}\r\n"
    head += f"Authorization: Bearer {key}\r\n\r\n[" if key else "\r\n["
    with ExitStack() as stack, ThreadPoolExecutor(UPLOADERS) as pool:
        for _ in range(sockets):
            stalled = stack.enter_context(socket.create_connection(("127.0.0.1", hud.port), 60))
            stalled.sendall(head.encode())
        done = threading.Event()
        beats: Answers = []

        def send_beats() -> None:
            while not done.is_set() or not beats:
                beats.append(post(hud, "hosts/beat", host, beat))

        stack.callback(done.set)
        beating = threading.Thread(target=send_beats)
        beating.start()
        stored = list(pool.map(lambda number: post(hud, "results", uploader, upload_of(number)), numbers))
        done.set()
        beating.join()
    return stored, beats
