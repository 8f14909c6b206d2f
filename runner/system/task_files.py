"""The files of a task's folder: those that a benchmark may write too, and its log, which fills no disk.

A benchmark is arbitrary code: what stands in a file's place may be a link to another file, a device or a pipe
without end, or of any size.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_LOG_BYTES = 63 * 2**20  # the hud takes 64 MiB of a log; notices come on top
LOG_TAIL_BYTES = 256 * 2**10  # the end, where errors stand, is kept whatever came before
MAX_RESULTS_BYTES = 64 * 2**20  # of results.jsonl; what follows is not read
MAX_JSON_BYTES = 2**20  # of a file with one JSON object


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read it. Raise OSError for anything else, such as a link or a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, at_most: int) -> bytes:
    """Return a file's content. Raise OSError for one that is larger or is no regular file."""
    with open_file(path) as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"it is larger than {at_most} bytes", str(path))
    return content


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raise OSError, or ValueError for anything else in it."""
    try:
        value = json.loads(read_file(path, MAX_JSON_BYTES))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no object")  # noqa: TRY004 - of a file, not of an argument
    return value


def artifacts_in(folder: Path) -> list[Path]:
    """Return the artifacts of a task's folder: `artifacts/KIND/NAME`. Behind a link there is none."""
    paths = sorted((folder / "artifacts").glob("*/*"))
    return [path for path in paths if not any(parent.is_symlink() for parent in [*path.parents][:2])]


def write_json(path: Path, value: Any) -> None:
    """Write a file that only its owner may read, complete or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    write_new(draft, json.dumps(value), mode=0o600)
    draft.replace(path)


def write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file in the place of one that stands there. A link is not followed."""
    path.unlink(missing_ok=True)
    with path.open("x") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)


class CappedLog:
    """Append to a file at once, so that it can be followed while it grows; a long one keeps its head and its
    last part.

    Bytes are only ever added, so the file can be uploaded by offset. One line in square brackets stands for
    what is left out.
    """

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._file = path.open("xb", buffering=0)
        self._head_left = MAX_LOG_BYTES - LOG_TAIL_BYTES
        self._tail = bytearray()
        self._left_out = 0
        self._ends_in_line = False

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
        excess = max(0, len(self._tail) - LOG_TAIL_BYTES)
        del self._tail[:excess]
        self._left_out += excess

    def note(self, text: str) -> None:
        """Add a line of the runner itself, marked as such."""
        self.feed(b"\n" * self._ends_in_line + f"[runner] {text}\n".encode())

    def close(self) -> None:
        if self._left_out:
            self._write(f"\n[{self._left_out} bytes left out here]\n".encode())
        self._write(self._tail)
        self._file.close()

    def _write(self, data: bytes | bytearray) -> None:
        """Write, or lose the data if the disk is full: the task goes on without its log."""
        with contextlib.suppress(OSError):
            self._file.write(data)
