"""A log that cannot fill the disk: a long one keeps its head and its last part."""

from __future__ import annotations

import contextlib
from pathlib import Path

MAX_BYTES = 63 * 2**20  # the hud takes 64 MiB of a log; notices come on top
TAIL_BYTES = 256 * 2**10  # the end, where errors stand, is kept whatever came before


class CappedLog:
    """Append to a file at once, so that it can be followed while it grows.

    Bytes are only ever added, so the file can be uploaded by offset. One line in square brackets stands for
    what is left out.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._file = path.open("wb", buffering=0)
        self._head_left = max(0, max_bytes - tail_bytes)
        self._tail_bytes = tail_bytes
        self._tail = bytearray()
        self._left_out = 0
        self._ends_in_line = False

    def __enter__(self) -> CappedLog:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def feed(self, data: bytes) -> None:
        """Add output of the benchmark, in pieces as they come out of a pipe."""
        if not data:
            return
        self._ends_in_line = data[-1:] not in b"\r\n"
        head, rest = data[: self._head_left], data[self._head_left :]
        if head:
            self._write(head)
            self._head_left -= len(head)
        if rest and not self._tail:
            self._write(b"\n[log is full; its last part follows when the task has ended]\n")
        self._tail += rest
        excess = max(0, len(self._tail) - self._tail_bytes)
        del self._tail[:excess]
        self._left_out += excess

    def note(self, text: str) -> None:
        """Add a line of the runner itself, marked as such."""
        self.feed(b"\n" * self._ends_in_line + f"[runner] {text}\n".encode())

    def close(self) -> None:
        if self._file.closed:
            return
        if self._left_out:
            self._write(f"\n[{self._left_out} bytes left out here]\n".encode())
        self._write(self._tail)
        self._file.close()

    def _write(self, data: bytes | bytearray) -> None:
        """Write, or lose the data if the disk is full: the task goes on without its log."""
        with contextlib.suppress(OSError):
            self._file.write(data)
