"""One process per accelerator: a lock file that the benchmark itself inherits.

The lock belongs to the open file, so it stays held while any process that inherited it lives, also an
orphan, and frees itself when the last one dies. The folder is one for the whole machine and user: two
agents on one machine, or an agent and a person at a terminal, exclude each other.
"""

import contextlib
import fcntl
import json
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_POLL_S = 0.05


class Busy(RuntimeError):
    """The accelerator is in use."""


@dataclass(frozen=True)
class Holder:
    """The process that took a lock last: the launcher, not its benchmark; pid 0 if unknown."""

    pid: int = 0
    what: str = ""


def default_folder() -> Path:
    """Return `RUNNER_LOCKS`, else a folder of this user in the machine's temporary directory."""
    folder = os.environ.get("RUNNER_LOCKS")
    return Path(folder) if folder else Path(tempfile.gettempdir()) / f"compiler-hud-locks-{os.getuid()}"


def acquire(folder: Path, name: str, *, what: str = "", wait_s: float = 1.0) -> int:
    """Take the lock of an accelerator (its UUID, or its name); return the descriptor that holds it.

    Pass the descriptor to the benchmark (`launch(lock_fd=…)`) and close it when done. Raise `Busy` if the
    lock is still held after `wait_s`, which is longer than `holder` takes to look; OSError on a full disk.
    """
    descriptor = _open(folder, name)
    until = time.monotonic() + wait_s
    while not _try(descriptor, fcntl.LOCK_EX):
        if time.monotonic() >= until:
            held_by = _read(descriptor)
            os.close(descriptor)
            raise Busy(f"{name} is in use by process {held_by.pid or 'unknown'}")
        time.sleep(_POLL_S)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "what": what}).encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def holder(folder: Path, name: str) -> Holder | None:
    """Return the holder of an accelerator's lock, or None if it is free."""
    descriptor = _open(folder, name)
    try:
        return None if _try(descriptor, fcntl.LOCK_SH) else _read(descriptor)
    finally:
        os.close(descriptor)


def processes_with(folder: Path, name: str) -> list[int]:
    """Return the pids of the processes that have the lock file open, as far as this user may see."""
    target = os.fspath(_path(folder, name).resolve())
    pids = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if any(os.fspath(link.readlink()) == target for link in (process / "fd").iterdir()):
                    pids.append(int(process.name))
    return pids


def _path(folder: Path, name: str) -> Path:
    return folder / f"{_UNSAFE.sub('-', name) or 'unnamed'}.lock"


def _open(folder: Path, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid not in {0, os.getuid()}:
            raise PermissionError  # noqa: TRY301 - as the system says it
        descriptor = os.open(_path(folder, name), flags, 0o600)
    except PermissionError:
        detail = f"{folder}, the folder of locks, is another user's or cannot be written"
        raise PermissionError(f"{detail}; set RUNNER_LOCKS to a folder of your own") from None
    if os.fstat(descriptor).st_uid == os.getuid():
        os.fchmod(descriptor, 0o660)  # nosec B103: for the group of the folder, root and the agent that it started
    return descriptor


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> Holder:
    try:
        value = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(int(value["pid"]), str(value["what"]))
    except (ValueError, KeyError, TypeError):
        return Holder()
