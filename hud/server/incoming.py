"""A request while it is received, and then the source from which gunicorn's thread reads it."""

from __future__ import annotations

import re
import tempfile
from typing import IO

MAX_HEAD_BYTES = 64 * 1024
_IN_MEMORY_BYTES = 256 * 1024  # of a request; larger ones go to a file
_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\nContent-Length[ \t]*:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
_ANY_LENGTH = re.compile(rb"\r\nContent-Length[ \t]*:", re.IGNORECASE)
_CODED = re.compile(rb"\r\nTransfer-Encoding[ \t]*:", re.IGNORECASE)
_KEY = re.compile(rb"\r\nAuthorization[ \t]*:[ \t]*Bearer[ \t]+([^ \t\r]+)", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nExpect[ \t]*:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)


class Incoming:
    """One request. `complete`: a thread may read it. `body_bytes`: the announced length, 0 before the head.

    A body over `most_bytes`, or one without a length, is not received: the application refuses it by its head
    alone, and the connection closes afterwards (`cut`).
    """

    def __init__(self, most_bytes: int) -> None:
        self.complete = False
        self.cut = False
        self.expects_continue = False
        self.body_bytes = 0
        self.key = ""  # of the sender; not checked
        self.received_bytes = 0
        self.rest = b""  # the beginning of the next request
        self._most_bytes = most_bytes
        self._head = bytearray()
        self._missing: int | None = None  # bytes of the body; None until the head is there
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - close()

    @property
    def head_too_large(self) -> bool:
        return self._missing is None and len(self._head) > MAX_HEAD_BYTES

    @property
    def one_line(self) -> bool:
        """Return whether not even the first line is complete."""
        return b"\r\n" not in self._head

    def feed(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self._missing is None:
            searched = max(0, len(self._head) - len(_END))
            self._head += data
            end = self._head.find(_END, searched)
            if end < 0:
                return
            end += len(_END)
            data = bytes(self._head[end:])
            del self._head[end:]
            self._missing = self._read_head(bytes(self._head))
        body, self.rest = data[: self._missing], data[self._missing :]
        self._file.write(body)
        self._missing -= len(body)
        if not self._missing:
            self._finish()

    def refuse_body(self) -> None:
        """Let the application answer by the head alone."""
        self._file.seek(0)
        self._file.truncate()
        self._write_cut(_EXPECTS.sub(b"", bytes(self._head)))
        self._finish()

    def _finish(self) -> None:
        self.complete = True
        self._file.seek(0)

    def _read_head(self, head: bytes) -> int:
        """Store the head for the thread; return how many bytes of a body to receive."""
        lengths = _LENGTH.findall(head)
        self.body_bytes = int(lengths[0]) if lengths else 0
        # the application may understand a length that is unclear here, so nothing may follow this request
        unclear = len(lengths) != len(_ANY_LENGTH.findall(head)) or len(lengths) > 1
        self.cut = unclear or bool(_CODED.search(head)) or self.body_bytes > self._most_bytes
        self.expects_continue = bool(_EXPECTS.search(head)) and not self.cut
        found = _KEY.search(head)
        self.key = found[1].decode("latin-1") if found else ""
        head = _EXPECTS.sub(b"", head)  # the worker has answered it
        if self.cut:
            self._write_cut(head)
            return 0
        self._file.write(head)
        return self.body_bytes

    def _write_cut(self, head: bytes) -> None:
        self.cut = True
        line, _, fields = head.partition(b"\r\n")
        self._file.write(line + b"\r\nConnection: close\r\n" + fields)

    def recv(self, size: int) -> bytes:
        """Read like a socket."""
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()
