"""The processes of a benchmark: tied to their parent, found again, and ended, all of them.

A benchmark starts compile workers in sessions of their own; some outlive their parent. Linux, standard
library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple
from weakref import WeakSet

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_POLL_S = 0.05
_KILL_PATIENCE_S = 30.0  # a process that SIGKILL has not ended by then hangs inside the kernel
_libc = ctypes.CDLL(None, use_errno=True)  # opened here: nothing may be loaded between fork and exec


class Process(NamedTuple):
    """One row of /proc."""

    pid: int
    parent: int
    session: int
    state: str

    @property
    def dead(self) -> bool:
        return self.state in "ZX"


def die_with(parent: int) -> None:
    """Call in a fresh child: have the kernel kill this process when the thread that started it ends.

    `parent` is the pid it was forked from. Exit at once if that is gone already.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def dying_with_me(*, powerless: bool = False) -> Callable[[], None]:
    """Return a `preexec_fn` for `subprocess.Popen`. Call Popen in a thread that outlives the child. One that
    is `powerless` has no capabilities of ours, if it has another user id, and gets none by any program."""
    parent = os.getpid()

    def prepare() -> None:
        if powerless:
            _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
            _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        die_with(parent)

    return prepare


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, in place of init."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def read_process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold blanks and brackets
    return Process(pid, int(fields[1]), int(fields[3]), fields[0].decode())


def below_me(besides: Collection[int] = ()) -> list[Process]:
    """Return every process below this one, parents before children, zombies included.

    Leave out the direct children `besides` with all that is below them.
    """
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    below: dict[int, list[Process]] = {}
    for process in filter(None, map(read_process, numbers)):
        below.setdefault(process.parent, []).append(process)
    children = [process for process in below.get(os.getpid(), []) if process.pid not in besides]
    for process in children:  # grows while it is walked
        children += below.get(process.pid, [])
    return children


class Tree:
    """All processes below this one, except the children it had when the tree was made.

    Orphans are adopted, so what a benchmark starts stays below us, also in its own session and after its
    parent died. While another tree of this process is alive, only what is below `root` counts: orphans are
    left to the tree that ends last.
    """

    _alive: ClassVar[WeakSet[Tree]] = WeakSet()  # those that `end` has not ended

    def __init__(self) -> None:
        adopt_orphans()
        self._alive.add(self)
        self._besides = {process.pid for process in below_me() if process.parent == os.getpid()}
        self.root = 0  # the child whose exit status belongs to its Popen object, once it is started

    def alive(self) -> list[int]:
        """Return the pids of the tree that have not ended. Reap adopted ones that have."""
        alive, mine = [], {self.root}
        is_alone = not set(self._alive) - {self}
        for process in below_me(self._besides):
            if not is_alone and not {process.pid, process.parent} & mine:
                continue
            mine.add(process.pid)
            if not process.dead:
                alive.append(process.pid)
            elif process.parent == os.getpid() and process.pid != self.root:
                reap(process.pid)
        return alive

    def end(self, grace_s: float, meanwhile: Callable[[], object] = lambda: None) -> list[int]:
        """Send SIGTERM to all, SIGKILL to those left after `grace_s`; return pids that even that did not end.

        `meanwhile` is called while waiting, so that a dying process is not stuck in a full pipe.
        """
        self._alive.discard(self)
        left = self.alive()
        send(left, signal.SIGTERM)
        term_until = time.monotonic() + grace_s
        give_up = term_until + _KILL_PATIENCE_S
        while left and time.monotonic() < give_up:
            meanwhile()
            time.sleep(_POLL_S)
            left = self.alive()
            if time.monotonic() >= term_until:
                send(left, signal.SIGKILL)
        return left


def reap(pid: int) -> None:
    """Take the exit status of a child that was adopted and is dead."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
