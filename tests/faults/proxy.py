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
_POLL_S = 0.05
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST

Address = tuple[str, int] | str  # host and port, or the path of a unix socket


class Proxy:
    def __init__(self, target: Address, *, latency_s: float = 0.5) -> None:
        self._target = target
        self._latency_s = latency_s
        self.fault = ""
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.settimeout(_POLL_S)
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    def close(self) -> None:
        self._closed = True

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with self._listener:
            while not self._closed:
                with contextlib.suppress(OSError):
                    client, _address = self._listener.accept()
                    self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Both directions of one connection, until either side ends or a fault ends it."""
        self._wait_while_black()
        try:
            server = self._connect()
        except OSError:
            _reset(client)
            return
        ended = threading.Event()
        self._start(self._pump, client, server, "up", ended)
        self._pump(server, client, "down", ended)
        ended.wait()
        for end in (client, server):
            _reset(end) if self.fault == "reset" else end.close()

    def _connect(self) -> socket.socket:
        if self.fault == "reset":
            raise ConnectionResetError
        if isinstance(self._target, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            return server
        return socket.create_connection(self._target, timeout=10)

    def _pump(
        self, source: socket.socket, sink: socket.socket, direction: str, ended: threading.Event
    ) -> None:
        try:
            while not self._closed and not ended.is_set() and self.fault != "reset":
                self._wait_while_black()
                if not select.select([source], [], [], _POLL_S)[0]:
                    continue
                data = source.recv(DRIP_BYTES if self.fault == "drip" else 65536)
                if not data:
                    return
                self._pass_on(sink, data, direction)
        except (OSError, ValueError):  # closed meanwhile
            return
        finally:
            ended.set()

    def _pass_on(self, sink: socket.socket, data: bytes, direction: str) -> None:
        if self.fault == "slow":
            time.sleep(self._latency_s)
        elif self.fault == "drip":
            time.sleep(DRIP_S)
        self._wait_while_black()
        if self.fault != "half_open" or direction == "up":
            sink.sendall(data)

    def _wait_while_black(self) -> None:
        while self.fault == "blackhole" and not self._closed:
            time.sleep(_POLL_S)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()
