"""A log that cannot fill the disk: long lines are cut; a long log keeps its head and its last part."""

from __future__ import annotations

import contextlib
from pathlib import Path

MAX_BYTES = 63 * 2**20  # the hud takes 64 MiB of a log; notices come on top
TAIL_BYTES = 256 * 2**10  # the end, where errors stand, is kept whatever came before
MAX_LINE_BYTES = 16 * 2**10


class CappedLog:
    """Append to a file at once, so that it can be followed while it grows.

    Bytes are only ever added, so the file can be uploaded by offset. One line in square brackets stands for
    what is left out.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        tail_bytes: int = TAIL_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self._file = path.open("wb", buffering=0)
        self._head_left = max(0, max_bytes - tail_bytes)
        self._tail_bytes = tail_bytes
        self._tail = bytearray()
        self._left_out = 0
        self._full = False
        self._max_line_bytes = max_line_bytes
        self._column = 0
        self._cut = 0  # bytes of the present line that were dropped

    def __enter__(self) -> CappedLog:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def feed(self, data: bytes) -> None:
        """Add output of the benchmark, in pieces as they come out of a pipe."""
        kept = bytearray()
        for piece in data.splitlines(keepends=True):
            ended = piece[-1:] in b"\r\n"
            text = piece.rstrip(b"\r\n") if ended else piece
            room = self._max_line_bytes - self._column
            kept += text[: max(0, room)]
            self._cut += max(0, len(text) - max(0, room))
            self._column += len(text)
            if ended:
                kept += self._cut_notice() + piece[len(text) :]
                self._column = self._cut = 0
        self._append(bytes(kept))

    def note(self, text: str) -> None:
        """Add a line of the runner itself, marked as such."""
        start = b"\n" if self._column else b""
        self._append(self._cut_notice() + start + f"[runner] {text}\n".encode())
        self._column = self._cut = 0

    def close(self) -> None:
        if self._file.closed:
            return
        self._append(self._cut_notice())
        if self._left_out:
            self._write(f"\n[{self._left_out} bytes left out here]\n".encode())
        self._write(self._tail)
        self._file.close()

    def _write(self, data: bytes | bytearray) -> None:
        """Write, or lose the data if the disk is full: the task goes on without its log."""
        with contextlib.suppress(OSError):
            self._file.write(data)

    def _cut_notice(self) -> bytes:
        return f" [line cut: {self._cut} bytes left out]".encode() if self._cut else b""

    def _append(self, data: bytes) -> None:
        head, rest = data[: self._head_left], data[self._head_left :]
        if head:
            self._write(head)
            self._head_left -= len(head)
        if not rest:
            return
        if not self._full:
            self._full = True
            self._write(b"\n[log is full; its last part follows when the task has ended]\n")
        self._tail += rest
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self._left_out += excess
