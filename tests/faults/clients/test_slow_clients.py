"""Clients that read or send slowly, many at once: others are served meanwhile, and the slow ones end.

`-s` prints the longest answer; `make soak` holds it below a second.
"""

from __future__ import annotations

import http.client
import select
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from hud.accounts.keys import create_key
from tests.soak import Figures
from tests.support.servers import Hud
from tests.support.waiting import wait_for

PATIENCE_S = 5  # of those who ask meanwhile, on a machine that does other things too
IDLE_S = 1  # of an idle machine, where `make soak` runs
SCRIPT = "/static/plotly/plotly.min.js"  # larger than all buffers together
ADDRESS_SOCKETS, ADDRESS_BYTES = 256, 512 * 2**20  # as `hud/server/gunicorn_worker.py` has them
MIB, BODIES = 2**20, 24
FEW, MANY = 16, 200  # the web has four threads
NUMBERS = [
    *((number, PATIENCE_S) for number in (FEW, MANY)),
    *(pytest.param(number, IDLE_S, marks=[pytest.mark.soak, pytest.mark.alone]) for number in (FEW, MANY)),
]


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(hud: Hud, clients: ExitStack, *, window_bytes: int = 0) -> socket.socket:
    client = clients.enter_context(socket.socket())
    if window_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    client.settimeout(60)
    client.connect(("127.0.0.1", hud.port))
    return client


def status_of(hud: Hud, path: str = "/healthz") -> int:
    client = http.client.HTTPConnection("127.0.0.1", hud.port, timeout=PATIENCE_S)
    try:
        client.request("GET", path, headers={"Host": "localhost"})
        answer = client.getresponse()
        answer.read()
        return answer.status
    finally:
        client.close()


def longest_s(hud: Hud, *paths: str) -> float:
    """Return the seconds of the longest of these answers."""
    seconds = []
    for path in paths:
        began = time.monotonic()
        assert status_of(hud, path) == 200
        seconds.append(time.monotonic() - began)
    return max(seconds)


def ends(client: socket.socket) -> bool:
    """Read what has come; return whether the connection has ended."""
    client.setblocking(False)
    try:
        while client.recv(2**20):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def is_closed(client: socket.socket) -> bool:
    """Return whether the other side has ended the connection, without reading from it."""
    events = select.poll()
    events.register(client, select.POLLRDHUP)
    return bool(events.poll(0))


def slow_readers(hud: Hud, clients: ExitStack, number: int) -> list[socket.socket]:
    readers = [connect(hud, clients, window_bytes=2048) for _ in range(number)]
    for reader in readers:
        reader.sendall(f"GET {SCRIPT} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return readers


@pytest.mark.parametrize(("number", "limit_s"), NUMBERS)
def test_slow_readers_hold_up_nobody(
    hud_process: Hud, clients: ExitStack, figures: Figures, number: int, limit_s: float
) -> None:
    hud_process.start(HUD_READ_S="60")
    with urllib.request.urlopen(f"{hud_process.url}{SCRIPT}", timeout=60) as answer:
        size = len(answer.read())
    readers = slow_readers(hud_process, clients, number)
    longest = 0.0
    for _ in range(3):
        for reader in readers:
            reader.recv(256)
        longest = max(longest, longest_s(hud_process, "/healthz", "/login/"))
    figures.note("longest answer of /healthz and /login/", longest, "s", most=limit_s)
    with urllib.request.urlopen(f"{hud_process.url}{SCRIPT}", timeout=60) as answer:
        assert len(answer.read()) == size


def test_slow_readers_end(hud_process: Hud, clients: ExitStack) -> None:
    hud_process.start(HUD_READ_S="2")
    readers = slow_readers(hud_process, clients, FEW)
    wait_for(lambda: all(map(is_closed, readers)), "the end of those who do not read")


@pytest.mark.parametrize(("number", "limit_s"), NUMBERS)
def test_slow_bodies_hold_up_nobody(
    hud_process: Hud, clients: ExitStack, figures: Figures, number: int, limit_s: float
) -> None:
    hud_process.start(HUD_READ_S="3")
    head = b"POST /api/v1/results HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
    senders = [connect(hud_process, clients) for _ in range(number)]
    for sender in senders:
        sender.sendall(head)
    longest = 0.0
    for _ in range(3):
        for sender in senders:
            sender.sendall(b" ")
        longest = max(longest, longest_s(hud_process, "/healthz"))
    figures.note("longest answer of /healthz", longest, "s", most=limit_s)
    for sender in senders:
        assert sender.recv(100).startswith(b"HTTP/1.1 408 ")


def test_sockets_of_one_address_are_limited(hud_process: Hud, clients: ExitStack) -> None:
    hud_process.start()
    idle = [connect(hud_process, clients) for _ in range(ADDRESS_SOCKETS + 50)]
    assert status_of(hud_process) == 200
    wait_for(lambda: all(map(ends, idle[:50])), "the end of the oldest ones")
    assert not any(map(ends, idle[-100:]))


@pytest.mark.soak
def test_bytes_held_for_one_address_are_limited(
    hud_process: Hud, clients: ExitStack, figures: Figures
) -> None:
    hud_process.start(HUD_READ_S="600")
    key = create_key(name="k", scopes=["upload"], who="t")[1]
    head = f"POST /api/v1/results HTTP/1.1\r\nHost: localhost\r\nContent-Length: {32 * MIB}\r\n"
    head += f"Authorization: Bearer {key}\r\n\r\n["
    senders = [connect(hud_process, clients) for _ in range(BODIES)]
    for sender in senders:
        with suppress(ConnectionError):  # it was the oldest of too many bytes
            sender.sendall(head.encode() + b" " * 31 * MIB)
    wait_for(lambda: sum(map(is_closed, senders)) * 31 * MIB >= BODIES * 31 * MIB - ADDRESS_BYTES, "room")
    longest = longest_s(hud_process, "/healthz", "/login/")
    ended = sum(map(is_closed, senders))
    figures.note("longest answer of /healthz and /login/", longest, "s")
    figures.note("oldest bodies of 31 MiB that ended", ended, most=BODIES - ADDRESS_BYTES // (31 * MIB) + 1)
    assert not is_closed(senders[-1]), "the oldest end first"


@pytest.mark.parametrize("scopes", [["read"], ["run"]])
def test_large_bodies_of_keys_that_may_not_upload_are_not_received(
    hud_process: Hud, clients: ExitStack, scopes: list[str]
) -> None:
    hud_process.start()
    head = "POST /api/v1/results HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
    sender = connect(hud_process, clients)
    key = create_key(name="k", scopes=scopes, who="t")[1]
    sender.sendall(f"{head}Authorization: Bearer {key}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert sender.recv(100).startswith(b"HTTP/1.1 403 ")
