"""A gunicorn worker whose threads get complete requests only: a slow sender costs a socket and no thread.

The main loop receives all requests concurrently, each with a deadline. A large body is received only from a
sender with a valid key. Requests that gunicorn itself refuses are answered in problem+json, like those of the
API.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from django.conf import settings
from django.db import close_old_connections
from gunicorn.http import RequestParser, errors
from gunicorn.workers.gthread import TConn, ThreadWorker

from hud.server.incoming import Incoming

_STATUS: dict[type[Exception], HTTPStatus] = {  # of requests that gunicorn refuses; else 400
    errors.LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    errors.LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.UnsupportedTransferCoding: HTTPStatus.NOT_IMPLEMENTED,
    errors.ExpectationFailed: HTTPStatus.EXPECTATION_FAILED,
    errors.InvalidResponseHeader: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_PIECE_BYTES = 256 * 1024
_SLOWEST_BYTES_PER_S = 20_000  # a faster sender never meets its deadline
_UNKNOWN_BYTES = 64 * 1024  # the largest body of a sender without a valid key, kept in memory
_MAX_WAITING_BYTES = 2**30  # received of all requests that are not complete
_LINGER_S = 2  # for the client to read its answer before the connection closes
_SEND_BYTES = 4 * 2**20


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no annotations
    """`HUD_READ_S` limits slow requests, and answers that the client does not read."""

    def init_process(self) -> None:
        self._read_s = settings.HUD_READ_S
        self._most_bytes = max(settings.HUD_MAX_BODY_BYTES, settings.HUD_MAX_ARTIFACT_BYTES)
        self._incoming: dict[TConn, Incoming] = {}
        self._leaving: set[TConn] = set()
        super().init_process()

    # Main loop: nothing here may block.

    def accept(self, listener: socket.socket) -> None:
        try:
            sock, client = listener.accept()
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK}:
                raise
            return
        self.nr_conns += 1
        with suppress(OSError):  # a page fits into the buffer, so that its thread need not wait
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._await(TConn(self.cfg, sock, client, listener.getsockname()), self._read_s)

    def _await(self, conn: TConn, patience_s: float, begun: bytes = b"") -> None:
        """Wait for the connection's next request, whose first bytes are `begun`."""
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + (self._read_s if begun else patience_s)
        self._incoming[conn] = Incoming(self._most_bytes)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(self._receive, conn))
        if begun:
            self._feed(conn, begun)

    def _receive(self, conn: TConn, sock: socket.socket) -> None:
        """Take what has come, or drop a connection that has ended."""
        try:
            data = sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(conn)
        elif conn not in self._leaving:
            try:
                self._feed(conn, data)
            except OSError as error:
                self.log.warning("a request cannot be kept: %s", error)
                self._refuse(conn, HTTPStatus.INSUFFICIENT_STORAGE)

    def _feed(self, conn: TConn, data: bytes) -> None:
        incoming = self._incoming[conn]
        if not incoming.received_bytes:
            conn.timeout = time.monotonic() + self._read_s
        conn.timeout += len(data) / _SLOWEST_BYTES_PER_S
        known = incoming.body_bytes
        incoming.feed(data)
        if incoming.complete:
            self._hand_over(conn)
        elif incoming.head_too_large:
            status = (
                HTTPStatus.REQUEST_URI_TOO_LONG
                if incoming.one_line
                else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            )
            self._refuse(conn, status)
        elif incoming.body_bytes != known:
            self._expect_body(conn, incoming)

    def _expect_body(self, conn: TConn, incoming: Incoming) -> None:
        """Receive the body that a complete head announces; a large one once the key is known to be valid."""
        if incoming.body_bytes <= _UNKNOWN_BYTES:
            _permit_body(conn, incoming)
        elif not incoming.key:
            incoming.refuse_body()
            self._hand_over(conn)
        elif sum(other.received_bytes for other in self._incoming.values()) > _MAX_WAITING_BYTES:
            self._refuse(conn, HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self.poller.unregister(conn.sock)
            del self._incoming[conn]
            self.tpool.submit(_is_valid, incoming.key).add_done_callback(
                lambda check: self.method_queue.defer(self._checked, conn, incoming, check)
            )

    def _checked(self, conn: TConn, incoming: Incoming, check: Future[bool]) -> None:
        """Receive the rest of a large body, or let the application refuse its key."""
        self._incoming[conn] = incoming
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(self._receive, conn))
        if check.cancelled() or check.exception():
            self._refuse(conn, HTTPStatus.SERVICE_UNAVAILABLE)
        elif check.result():
            _permit_body(conn, incoming)
        else:
            incoming.refuse_body()
            self._hand_over(conn)

    def _hand_over(self, conn: TConn) -> None:
        """Give a complete request to a thread, where gunicorn parses it."""
        self.poller.unregister(conn.sock)
        conn.incoming = self._incoming.pop(conn)
        conn.parser = RequestParser(self.cfg, conn.incoming, conn.client)
        conn.initialized = conn.data_ready = True
        self.enqueue_req(conn)

    def finish_request(self, conn: TConn, future: Future[Any]) -> None:
        """Wait for the next request or close the connection, after a thread has answered."""
        incoming: Incoming = conn.incoming
        incoming.close()
        goes_on = not future.cancelled() and future.exception() is None and future.result()
        if goes_on and not incoming.cut:
            patience_s = self.cfg.keepalive if self.alive else min(self.cfg.keepalive, _LINGER_S)
            self._await(conn, patience_s, incoming.rest)
        elif incoming.cut or incoming.rest:
            self._leave(conn)
        else:
            self._close(conn)

    def _refuse(self, conn: TConn, status: HTTPStatus) -> None:
        with suppress(OSError):
            conn.sock.send(_problem(status))
        self.poller.unregister(conn.sock)
        self._incoming.pop(conn).close()
        self._leave(conn)

    def _leave(self, conn: TConn) -> None:
        """Close later: with bytes unread, closing at once would discard the answer on its way."""
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(conn)
            return
        conn.timeout = time.monotonic() + _LINGER_S
        self._leaving.add(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(self._receive, conn))

    def _drop(self, conn: TConn) -> None:
        """Close a connection of the main loop without an answer."""
        self.poller.unregister(conn.sock)
        incoming = self._incoming.pop(conn, None)
        if incoming:
            incoming.close()
        self._leaving.discard(conn)
        self._close(conn)

    def _close(self, conn: TConn) -> None:
        self.nr_conns -= 1
        conn.close()

    def murder_pending(self) -> None:
        """End overdue connections; gunicorn calls this every second."""
        now = time.monotonic()
        for conn in [conn for conn in [*self._incoming, *self._leaving] if conn.timeout <= now]:
            incoming = self._incoming.get(conn)
            if incoming and incoming.received_bytes:
                self._refuse(conn, HTTPStatus.REQUEST_TIMEOUT)
            else:
                self._drop(conn)

    def _cap_keepalive(self, deadline: float) -> None:
        """Limit the wait of a stopping worker for requests that have not begun."""
        for conn, incoming in self._incoming.items():
            if not incoming.received_bytes:
                conn.timeout = min(conn.timeout, deadline)

    # In a thread.

    def handle_request(self, request: Any, conn: TConn) -> Any:
        conn.sock.settimeout(self._read_s)  # for each piece of the answer
        try:
            return super().handle_request(request, conn)
        except TimeoutError:
            self.log.info("the client does not read the answer to %s", request.uri)
            return False

    def _keepalive_after(self, _conn: TConn, keepalive: Any) -> bool:
        """Keep the connection even if the application left the body unread: the socket has none of it."""
        return bool(keepalive)

    def handle_error(self, request: Any, client: socket.socket, address: Any, error: Exception) -> None:
        status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), None)
        if status is None:
            refused = isinstance(error, errors.ParseException)
            status = HTTPStatus.BAD_REQUEST if refused else HTTPStatus.INTERNAL_SERVER_ERROR
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log.error("error on %s", getattr(request, "uri", "a request"), exc_info=error)
        else:
            self.log.info("refused a request of %s: %s", address[0] if address else "-", error)
        with suppress(OSError):
            client.sendall(_problem(status))


def _permit_body(conn: TConn, incoming: Incoming) -> None:
    if incoming.expects_continue:
        with suppress(OSError):
            conn.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")


def _is_valid(key: str) -> bool:
    """Return whether an API key is valid. Called in a thread. Raise if the database is away."""
    from hud.accounts.keys import find_key  # noqa: PLC0415 - needs Django's applications

    close_old_connections()
    return find_key(key) is not None


def _problem(status: HTTPStatus) -> bytes:
    """Return a complete answer, after which the connection closes."""
    body = orjson.dumps(
        {"type": "about:blank", "title": status.phrase, "status": status, "detail": status.description}
    )
    head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/problem+json\r\n"
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        head += "Retry-After: 5\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
