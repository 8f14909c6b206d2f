"""A network that can be spoiled: a TCP proxy in front of a server of the tests.

`Proxy(address)` listens on a port of its own. `fault` is one of FAULTS, for connections that are there and
for new ones; '' lets everything through.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

FAULTS = {
    "": "all is well",
    "slow": "every piece is `latency_s` late",
    "drip": "a few hundred bytes at a time",
    "reset": "connections are reset, new ones too",
    "blackhole": "nothing arrives, on either side, and nobody is told",
    "half_open": "what the server answers does not arrive",
}
DRIP_BYTES, DRIP_S = 400, 0.05
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST

Address = tuple[str, int] | str  # host and port, or the path of a unix socket


class Proxy:
    def __init__(self, target: Address, *, latency_s: float = 0.5) -> None:
        self._target = target
        self._late_s = {"slow": latency_s, "drip": DRIP_S}
        self._fault = ""
        self._closed = False
        self._changed = threading.Condition()  # of the fault; guards what is below
        self._ends: set[socket.socket] = set()  # of the connections that are there
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    @property
    def fault(self) -> str:
        return self._fault

    @fault.setter
    def fault(self, fault: str) -> None:
        assert fault in FAULTS
        with self._changed:
            self._fault = fault
            if fault == "reset":
                for end in self._ends:
                    _reset(end)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for end in (self._listener, *self._ends):
                _stop_reading(end)
            self._changed.notify_all()

    def _start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        with self._listener:
            while not self._closed:
                with contextlib.suppress(OSError):  # also where `close` ends the wait
                    client, _address = self._listener.accept()
                    self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Both directions of one connection, until either side ends or a fault ends it."""
        self._wait_while_black()
        with client, contextlib.ExitStack() as stack:
            try:
                server = stack.enter_context(self._connect())
            except OSError:
                _reset(client)
                return
            with self._changed:
                self._ends |= {client, server}
            if self.fault == "reset":  # since a moment ago
                _reset(client)
            upwards = self._start(self._pump, client, server, "up")
            self._pump(server, client, "down")
            upwards.join()
            with self._changed:
                self._ends -= {client, server}

    def _connect(self) -> socket.socket:
        if self.fault == "reset" or self._closed:
            raise ConnectionResetError
        if isinstance(self._target, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            return server
        return socket.create_connection(self._target, timeout=10)

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while self.fault != "reset" and not self._closed:
                select.select([source], [], [])
                self._wait_while_black()
                data = source.recv(DRIP_BYTES if self.fault == "drip" else 65536)
                if not data:
                    return
                self._pass_on(sink, data, direction)
        except OSError:
            return
        finally:
            for end in (source, sink):  # the other direction ends too
                _stop_reading(end)

    def _pass_on(self, sink: socket.socket, data: bytes, direction: str) -> None:
        if late_s := self._late_s.get(self.fault):
            time.sleep(late_s)  # a slow line is the fault that is played: each piece arrives this late
        self._wait_while_black()
        if self.fault != "half_open" or direction == "up":
            sink.sendall(data)

    def _wait_while_black(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._fault != "blackhole" or self._closed)


def _reset(end: socket.socket) -> None:
    """When it is closed, which is soon, the other side is told by a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    _stop_reading(end)


def _stop_reading(end: socket.socket) -> None:
    """Whoever waits for this socket goes on, with nothing."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)
