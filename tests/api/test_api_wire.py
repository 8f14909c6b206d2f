"""The wire under the API: slow, broken and unusual clients, and those who wait behind them."""

from __future__ import annotations

import http.client
import io
import json
import socket
from contextlib import ExitStack
from typing import Any

import pytest
from waitress.adjustments import Adjustments

from hud.accounts.keys import create_key
from hud.server.gunicorn_worker import MAX_HEAD_BYTES, Request
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud

SLOW = 20  # senders at once; the web has four threads
HEAD = b"POST /api/v1/results HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_the_wire(hud_process: Hud) -> None:
    """One web for all of it: it is expensive to start."""
    hud_process.start(HUD_READ_S="2")
    key = create_key(name="k", scopes=["upload"], who="t")[1].encode()
    slow_senders_hold_up_nobody_and_are_told(hud_process)
    what_the_server_itself_refuses_is_a_problem_too(hud_process)
    bodies_nobody_waits_for(hud_process, HEAD + b"Authorization: Bearer " + key + b"\r\n")
    bodies_in_chunks(hud_process, HEAD + b"Authorization: Bearer " + key + b"\r\n")
    one_connection_many_requests(hud_process, HEAD + b"Authorization: Bearer " + key + b"\r\n")


def answer_of(client: socket.socket) -> tuple[int, str, bytes]:
    """Status, content type and body of the next answer on this connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # no further: the next answer may stand behind
        byte = client.recv(1)
        assert byte, f"the connection ended after {head!r}"
        head += byte
    line, _, fields = head.partition(b"\r\n")
    headers = http.client.parse_headers(io.BytesIO(fields))
    body = b""
    while len(body) < int(headers["Content-Length"]):
        body += client.recv(int(headers["Content-Length"]) - len(body))
    return int(line.split()[1]), headers["Content-Type"], body


def said(hud: Hud, data: bytes) -> tuple[int, dict[str, Any]]:
    """The answer to these bytes, which is problem+json and the last of its connection."""
    with socket.create_connection(("127.0.0.1", hud.port), timeout=60) as client:
        client.sendall(data)
        status, content_type, body = answer_of(client)
        assert client.recv(1) == b""
    assert content_type == "application/problem+json"
    problem = json.loads(body)
    assert problem["status"] == status
    return status, problem


def slow_senders_hold_up_nobody_and_are_told(hud: Hud) -> None:
    address = ("127.0.0.1", hud.port)
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(SLOW)]
        silent = stack.enter_context(socket.create_connection(address, timeout=60))
        for number, client in enumerate(slow):
            client.sendall(HEAD if number % 2 else HEAD + b"Content-Length: 100\r\n\r\n[")
        other = stack.enter_context(socket.create_connection(address, timeout=60))
        for _ in range(3):
            other.sendall(GET)
            assert answer_of(other)[0] == 200
        for client in slow:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)  # not one of them was given up before the other was served
            client.settimeout(60)
        for client in slow:
            status, content_type, body = answer_of(client)
            assert (status, content_type) == (408, "application/problem+json")
            assert json.loads(body)["title"] == "Request Timeout"
            assert client.recv(1) == b""
        assert silent.recv(1) == b""


def what_the_server_itself_refuses_is_a_problem_too(hud: Hud) -> None:
    long = b"a" * (MAX_HEAD_BYTES + 1)
    assert said(hud, b"nonsense\r\n\r\n")[0] == 400
    assert said(hud, b"GET / HTTP/9.9\r\n\r\n")[0] == 400
    assert said(hud, HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab")[0] == 400
    assert said(hud, b"GET /" + long)[0] == 431
    assert said(hud, HEAD + b"X-Long: " + long)[0] == 431
    assert said(hud, HEAD + b"X-Y: z\r\n" * 10_000 + b"\r\n")[0] == 431
    assert said(hud, HEAD + b"Transfer-Encoding: what\r\n\r\n")[0] in {400, 501}


def bodies_nobody_waits_for(hud: Hud, head: bytes) -> None:
    for version in (b"HTTP/1.0", b"HTTP/1.1"):  # `said` sees that nothing but the first request is answered
        both = head.replace(b"HTTP/1.1", version) + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"
        assert said(hud, both + b"Connection: keep-alive\r\n\r\n0\r\n\r\n" + GET)[0] in {400, 411}
    for length in (b"+5", b"5, 5", b"x", b"", b"0x5", b"5 5", b"-1"):
        assert said(hud, head + b"Content-Length: " + length + b"\r\n\r\nabcde" + GET)[0] == 400
    assert said(hud, head + b"Content-Length: 999999999\r\n\r\n[")[0] == 413
    assert said(hud, head + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n")[0] == 413


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def bodies_in_chunks(hud: Hud, head: bytes) -> None:
    """A body in chunks is received whole, whatever their size, and only from a key that may send it."""
    coding = b"Transfer-Encoding: chunked\r\n"
    records = [v3_record(case=f"chunk_{number}") for number in range(1000)]
    with socket.create_connection(("127.0.0.1", hud.port), timeout=60) as client:
        for count, size in ((1, 7), (1000, 1000), (1000, 300_000)):
            large = in_chunks(as_list(*records[:count]), size)
            client.sendall(head + coding + b"\r\n" + large + GET)
            status, _, body = answer_of(client)
            receipt = json.loads(body)
            assert (status in {200, 201}, receipt["stored"] + receipt["duplicates"]) == (True, count)
            assert answer_of(client)[0] == 200  # what stands behind is the next request
    assert said(hud, HEAD + coding + b"\r\n" + in_chunks(b"[" * 200_000, 1000))[0] == 401
    wrong = HEAD + b"Authorization: Bearer wrong\r\n" + coding + b"\r\n"
    assert said(hud, wrong + in_chunks(b"[" * 200_000, 1000))[0] == 401
    assert said(hud, head + coding + b"\r\nxyz\r\n[]\r\n")[0] == 400
    assert said(hud, head + coding + b"\r\n2\r\n[]\r\n")[0] == 408  # its end does not come


def test_a_body_in_chunks_ends_at_the_limit(settings: Any) -> None:
    settings.HUD_MAX_BODY_BYTES = settings.HUD_MAX_ARTIFACT_BYTES = 1000
    request = Request(Adjustments())
    request.received(HEAD + b"Authorization: Bearer k\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert request.received(in_chunks(b"x" * 900, 100)[:-5])
    assert not request.completed
    assert request.received(b"64\r\n" + b"x" * 100 + b"\r\n")
    assert (request.completed, request.error) == (True, 413)


def one_connection_many_requests(hud: Hud, head: bytes) -> None:
    large = as_list(*(v3_record(case=f"case_{number}") for number in range(2000)))
    head += b"Content-Length: %d\r\n" % len(large)
    refused = HEAD + b"Content-Length: 3\r\n\r\nabc"  # without its key: nobody reads the body
    with socket.create_connection(("127.0.0.1", hud.port), timeout=60) as client:
        client.sendall(GET + refused + GET)  # at once
        assert answer_of(client)[0] == 200
        assert answer_of(client)[0] == 401
        assert answer_of(client)[0] == 200
        client.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(large + GET)
        status, _, body = answer_of(client)
        assert (status, json.loads(body)["stored"]) == (201, 2000)
        assert answer_of(client)[0] == 200
