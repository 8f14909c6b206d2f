"""A gunicorn worker that serves through waitress: neither a slow sender nor a slow reader costs a thread.

waitress's main loop receives whole requests, gives them to threads, and sends the answers. Large bodies and
answers wait in temporary files, static files are sent from their own. `hud/server/channels.py` adds deadlines
and limits.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from gunicorn.workers.base import Worker as BaseWorker
from waitress import wasyncore
from waitress.server import create_server

from hud.server.channels import MAX_HEAD_BYTES, Channel, end_overdue

_CONNECTIONS = 1000
_SWEEP_S = 1.0
_MEMORY_BYTES = 256 * 1024  # of one body or answer; the rest waits in a file
_UNREAD_BYTES = 64 * 2**20  # of one answer, before its thread waits for the reader
_UNLIMITED_BYTES = 2**62  # the application refuses a large body itself, see `Channel`


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn has no annotations
    def run(self) -> None:
        self._channels: dict[int, Any] = {}
        sockets = [listener.sock for listener in self.sockets]
        server = create_server(
            _without_bodies_of_head(self.wsgi),
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
            listener.channel_class = Channel
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

    def _open_channels(self) -> list[Channel]:
        return [channel for channel in self._channels.values() if isinstance(channel, Channel)]

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


def _without_bodies_of_head(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Wrap a WSGI application, since waitress sends what Django answers to HEAD."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = application(environ, start_response)
        if environ["REQUEST_METHOD"] != "HEAD":
            return body
        if hasattr(body, "close"):
            body.close()
        return []

    return answer
