"""A gunicorn worker that serves through waitress: neither a slow sender nor a slow reader costs a thread.

waitress's main loop receives whole requests, gives them to threads, and sends the answers. Large bodies and
answers wait in temporary files, static files are sent from their own. To each connection this adds what
waitress lacks: deadlines, limits by address, and checked keys. Whoever sends or reads less than 20 kB/s, or
nothing for `HUD_READ_S`, loses the connection. A large body is received only from a key that may send one.
What is refused here is answered in problem+json.

It stays, since `make up` has no proxy: gunicorn's gthread with 16 threads fails all 13 tests of
`tests/faults/clients/test_slow_clients.py` (16 slow readers silence `/healthz`), waitress alone 9.
"""

import os
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.db import close_old_connections
from gunicorn.workers.base import Worker as BaseWorker
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import create_server
from waitress.task import ErrorTask, WSGITask

from hud.problems import Problem

MAX_HEAD_BYTES = 64 * 1024
_SLOWEST_BYTES_PER_S = 20_000
_UNKNOWN_BYTES = 64 * 1024  # the largest body of a sender whose key was not checked
_LARGE_BODIES = {"upload", "host"}  # scopes
_LINGER_S = 2  # for the client to read its answer before the connection closes
_PIECE_BYTES = 256 * 1024
_ADDRESS_SOCKETS = 256  # of one address; its oldest one ends where it opens more
_ADDRESS_BYTES = 512 * 2**20  # received of requests that are not complete, and unread of answers
_CONNECTIONS = 1000
_SWEEP_S = 1.0
_MEMORY_BYTES = 256 * 1024  # of one body or answer; the rest waits in a file
_UNREAD_BYTES = 64 * 2**20  # of one answer, before its thread waits for the reader
_UNLIMITED_BYTES = 2**62  # the application refuses a large body itself, see `Client`


class Request(HTTPRequestParser):  # type: ignore[misc]  # waitress has no annotations
    """One request while it is received.

    A body that is too large is not received: the application refuses it by its head alone, and the connection
    closes afterwards (`cut`). One in chunks, whose length nobody knows, is received as a large one.
    """

    error: Any
    cut = False
    key = ""  # of a large body, before it is received

    def received(self, data: bytes) -> int:
        count = super().received(data)
        if self.chunked and self.body_bytes_received > _most_bytes():
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return len(data) if self.cut else int(count)  # else the body would count as the next request

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        if self.version not in {"1.0", "1.1"}:
            raise ParsingError("HTTP/1.0 or HTTP/1.1")
        has_two_lengths = self.chunked and "CONTENT_LENGTH" in self.headers
        if has_two_lengths or "TRANSFER_ENCODING" in self.headers or self.content_length > _most_bytes():
            self.cut_body()
        elif self.chunked or self.content_length > _UNKNOWN_BYTES:
            scheme, _, key = self.headers.get("AUTHORIZATION", "").partition(" ")
            self.key = key.strip() if scheme.lower() == "bearer" else ""
            if not self.key:
                self.cut_body()

    def cut_body(self) -> None:
        """Let the application answer by the head alone."""
        self.close()
        self.cut, self.completed, self.chunked, self.expect_continue = True, True, False, False
        self.body_rcv, self.content_length = None, 0
        self.headers["CONNECTION"] = "close"

    def refuse(self, status: HTTPStatus) -> None:
        self.cut_body()
        self.error = status
        self.headers_finished = True


def _most_bytes() -> int:
    return max(settings.HUD_MAX_BODY_BYTES, settings.HUD_MAX_ARTIFACT_BYTES)


class Answer(WSGITask):  # type: ignore[misc]
    """The answer of the application, which to HEAD has a body too."""

    def write(self, data: bytes) -> None:
        super().write(b"" if self.request.command == "HEAD" else data)


class Refusal(ErrorTask):  # type: ignore[misc]
    """The answer to a request that does not reach the application."""

    def execute(self) -> None:
        status = HTTPStatus(getattr(self.request.error, "code", self.request.error))
        detail = getattr(self.request.error, "body", status.description)
        retry_after_s = 5 if status == HTTPStatus.SERVICE_UNAVAILABLE else None
        answer = Problem(status, detail, retry_after_s=retry_after_s).response()
        self.status = f"{status} {status.phrase}"
        self.response_headers += answer.items()
        self.set_close_on_finish()
        self.content_length = len(answer.content)
        self.write(answer.content)


class Client(HTTPChannel):  # type: ignore[misc]
    """One connection. All but `service` and what it calls runs in the main loop, where nothing may block."""

    parser_class = Request
    task_class = Answer
    error_task_class = Refusal
    request: Any  # Request, or None between two
    close_when_flushed: bool
    _unchecked = False  # a thread looks up the key of the request that is being received
    _leaving = False  # all is sent; what the client still sends is thrown away
    _direction = ""
    _moved_bytes = 0

    def __init__(self, server: Any, sock: socket.socket, addr: Any, adj: Any, map: Any = None) -> None:  # noqa: A002 - waitress's name
        super().__init__(server, sock, addr, adj, map=map)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE_BYTES)  # Linux itself would hold 4 MiB
        self.sendbuf_len = _PIECE_BYTES  # what is sent at once
        self._began = self._moved = time.monotonic()
        neighbours = _by_address(map.values()).get(addr[0], [])
        if len(neighbours) > _ADDRESS_SOCKETS:
            oldest = next((neighbour for neighbour in neighbours if not neighbour.requests), self)
            oldest.abort()

    @property
    def works(self) -> bool:
        """Return whether a request has begun, or its answer has not ended."""
        return bool(self.requests or self.request or self.total_outbufs_len)

    @property
    def held_bytes(self) -> int:
        """Return how much waits for this client, apart from files that are sent."""
        unread = sum(len(part) for part in list(self.outbufs) if not hasattr(part, "prepare"))
        return unread + (self.request.body_bytes_received if self.request else 0)

    def readable(self) -> bool:
        return self._leaving or (super().readable() and not self._unchecked)

    def received(self, data: bytes) -> bool:
        if self._leaving:
            return False
        if self.request is None:
            self._direction = ""
        self._note("receives", len(data))
        try:
            accepted = bool(super().received(data))
        except OSError as error:  # a full disk
            self.logger.warning("a request cannot be kept: %s", error)
            self._refuse(HTTPStatus.INSUFFICIENT_STORAGE)
            return False
        if self._needs_check():
            self.server.add_task(self)
        return accepted

    def send_continue(self) -> None:
        if not self.request.key:
            super().send_continue()

    def send(self, data: bytes, do_close: bool = True) -> int:
        sent = int(super().send(data, do_close))
        self._note("sends", sent)
        return sent

    def _note(self, direction: str, moved_bytes: int) -> None:
        """Keep how fast the client is, since the last change of direction."""
        now = time.monotonic()
        if direction != self._direction:
            self._direction, self._began, self._moved, self._moved_bytes = direction, now, now, 0
        if moved_bytes:
            self._moved = now
            self._moved_bytes += moved_bytes

    def handle_write(self) -> None:
        """Send. Close later: with bytes unread, closing at once would discard the answer on its way."""
        if not self.close_when_flushed:
            super().handle_write()
            return
        self.close_when_flushed = False  # a thread sets it as its last act
        super().handle_write()
        if self.connected and self.total_outbufs_len:
            self.close_when_flushed = True
        elif self.connected:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
            self._leaving, self._moved = True, time.monotonic()

    def end_if_overdue(self, keepalive_s: float) -> None:
        now = time.monotonic()
        idle_s, patience_s = now - self._moved, settings.HUD_READ_S
        is_slow = idle_s > patience_s or now - self._began > patience_s + (
            self._moved_bytes / _SLOWEST_BYTES_PER_S
        )
        if self._leaving:
            overdue = idle_s > _LINGER_S
        elif self.total_outbufs_len:
            self._note("sends", 0)
            overdue = is_slow
        elif self.requests or self._unchecked:
            overdue = False
        elif self.request is not None:
            overdue = False
            if is_slow:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            overdue = idle_s > (keepalive_s if self._direction else patience_s)
        if overdue:
            self.abort()

    def abort(self) -> None:
        """Close at once; the kernel discards what it holds for a client that does not read."""
        with suppress(OSError):
            if self.total_outbufs_len:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handle_close()

    def _refuse(self, status: HTTPStatus) -> None:
        with self.requests_lock:
            request = self.request or self.parser_class(self.adj)
            request.refuse(status)
            self._begin(request)

    def _begin(self, request: Request) -> None:
        """Give a request to a thread, as waitress does with one that is complete."""
        self.request, self.sent_continue = None, False
        self.requests.append(request)
        self.server.add_task(self)

    def _needs_check(self) -> bool:
        """Return whether to check a key now, for this thread alone."""
        with self.requests_lock:
            begins = bool(self.request and self.request.key and not self.requests and not self._unchecked)
            self._unchecked |= begins
        return begins

    # In a thread.

    def service(self) -> None:
        if self.requests:
            super().service()
            if not self._needs_check():
                return
        self._check_key()

    def _check_key(self) -> None:
        """Receive the rest of a large body, or let the application refuse its key."""
        request = self.request
        try:
            close_old_connections()
            from hud.accounts.keys import effective_scopes, find_key  # noqa: PLC0415 - needs applications

            key = find_key(request.key)
            valid = key is not None and not _LARGE_BODIES.isdisjoint(effective_scopes(key))
        except Exception as error:  # noqa: BLE001 - the database is away, in one of many ways
            self.logger.warning("a key cannot be checked: %s", error)
            request.refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            valid = False
        with self.requests_lock:
            request.key = ""
            if not valid:
                if not request.error:
                    request.cut_body()
                self._begin(request)
            elif request.expect_continue:
                self.send_continue()
        self._unchecked = False
        self.server.pull_trigger()


def end_overdue(channels: list[Client], keepalive_s: float) -> None:
    """Close what is overdue, and the oldest connections of addresses for which too much is held."""
    for channel in channels:
        channel.end_if_overdue(keepalive_s)
    for neighbours in _by_address(channels).values():
        held_bytes = {neighbour: neighbour.held_bytes for neighbour in neighbours if neighbour.connected}
        excess_bytes = sum(held_bytes.values()) - _ADDRESS_BYTES
        for channel, its_bytes in held_bytes.items():
            if excess_bytes > 0 and its_bytes > _PIECE_BYTES:
                excess_bytes -= its_bytes
                channel.abort()


def _by_address(channels: Iterable[Any]) -> Mapping[str, list[Client]]:
    """Return the connections of each address, oldest first; not those of a proxy, which are all visitors'. A
    Unix socket, which has no port, leads to one."""
    addresses = defaultdict(list)
    for channel in channels:
        if isinstance(channel, Client) and channel.addr[1] and channel.addr[0] not in settings.HUD_PROXIES:
            addresses[channel.addr[0]].append(channel)
    return addresses


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn has no annotations
    def run(self) -> None:
        self._channels: dict[int, Any] = {}
        sockets = [listener.sock for listener in self.sockets]
        server = create_server(
            self.wsgi,
            map=self._channels,
            sockets=sockets,
            server_name=str(sockets[0].getsockname()[0]),
            ident=None,
            threads=self.cfg.threads,
            connection_limit=_CONNECTIONS,
            recv_bytes=_MEMORY_BYTES,
            inbuf_overflow=_MEMORY_BYTES,
            outbuf_overflow=_MEMORY_BYTES,
            outbuf_high_watermark=_UNREAD_BYTES,
            max_request_header_size=MAX_HEAD_BYTES,
            max_request_body_size=_UNLIMITED_BYTES,
            clear_untrusted_proxy_headers=False,  # the application knows which proxies to trust
            trusted_proxy="127.0.0.1",  # as gunicorn does: whether its visitors use HTTPS
            trusted_proxy_headers="x-forwarded-proto",
            log_socket_errors=False,
            asyncore_use_poll=True,
        )
        for listener in list(self._channels.values()):
            listener.channel_class = Client
            listener.next_channel_cleanup = float("inf")  # by `end_overdue` instead
        while self.alive and os.getppid() == self.ppid:
            self._turn(self.cfg.keepalive)
        self._finish()
        server.task_dispatcher.shutdown(timeout=1)

    def _turn(self, keepalive_s: float) -> None:
        """Receive and send what can be at once, or wait for at most a second."""
        self.notify()
        wasyncore.loop(timeout=_SWEEP_S, use_poll=True, map=self._channels, count=1)
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            end_overdue(self._open_channels(), keepalive_s)

    _next_sweep = 0.0

    def _open_channels(self) -> list[Client]:
        return [channel for channel in self._channels.values() if isinstance(channel, Client)]

    def _finish(self) -> None:
        """Accept nothing more; end the requests that have begun, for as long as gunicorn permits."""
        for listener in self._channels.values():
            listener.accepting = False
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while time.monotonic() < deadline and any(channel.works for channel in self._open_channels()):
            self._next_sweep = 0.0
            self._turn(keepalive_s=0)

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        for listener in self._channels.values():
            if hasattr(listener, "pull_trigger"):
                listener.pull_trigger()  # so that the main loop notices at once
