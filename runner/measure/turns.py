"""Turns of the two sides of a pair, whose processes share processors.

The clock of a shared host moves within a second by more than a change of code is about: processes of one
code, one after the other, differ by 10 % and more. Where they take turns of some milliseconds, two of a
small kernel differ by 2 %, since the memory of each lies elsewhere. Only the process whose
turn it is works. It hands over where a loop of timings begins, then in that loop again and again, and as
it ends; a loop goes on until both sides have enough of it.

A suite measures in stages, which are forked: what these must know of each other lies in shared memory. The
launcher reads there for how long a side has waited: a time limit counts the side's own turns.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import time
from typing import Self

from runner.system.machine import busy_processors_s, default_threads

# In a process's environment: the file descriptors of what leads to the other side, and of the shared memory
TURNS_VARIABLE = "RUNNER_TURNS"
_TURN_S = 0.02
_LEAST_TURNS = 200  # of a loop
_LEAST_S = 4.0  # of one side in a loop; then fewer turns do
# whether it is our turn, else since when we wait; for how long we had waited before, and processors were
# busy meanwhile, in seconds
_SHARED = struct.Struct("?ddd")
_BEGINS, _MORE, _ENOUGH, _ENDED = b"begins", b"more", b"enough", b""


class Sharing:
    """Hand turns over to the process of the other side, through `channel`, and wait for the next."""

    def __init__(self, channel: socket.socket, memory: int) -> None:
        self._channel = channel
        self._memory = memory
        self._shared = mmap.mmap(memory, _SHARED.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()
        os.close(self._memory)

    @property
    def files(self) -> tuple[int, int]:
        """Return the file descriptors that a process needs, as `TURNS_VARIABLE` has them."""
        return self._channel.fileno(), self._memory

    @property
    def waited(self) -> tuple[float, float]:
        """Return for how many seconds we have waited, and for how many processors were busy meanwhile."""
        is_ours, since_s, waited_s, busy_s = self._load()
        return waited_s + (0.0 if is_ours else time.monotonic() - since_s), busy_s

    def hand_over(self, word: bytes) -> bytes:
        """Let the other process work until it hands over in its turn; return its word, or `_ENDED`."""
        self.store(False, time.monotonic(), *self.waited)
        with contextlib.suppress(OSError):  # it has ended
            self._channel.send(word)
        return self.wait()

    def wait(self) -> bytes:
        """Wait until it is our turn, if it is not."""
        is_ours, _since_s, _waited_s, busy_s = self._load()
        if is_ours:
            return _MORE
        busy_before_s = busy_processors_s()
        try:
            word = self._channel.recv(len(_BEGINS))
        except OSError:
            word = _ENDED
        busy_s += busy_processors_s() - busy_before_s
        self.store(True, 0.0, self.waited[0], busy_s)
        return word

    def _load(self) -> tuple[bool, float, float, float]:
        is_ours, since_s, waited_s, busy_s = _SHARED.unpack_from(self._shared)
        return is_ours, since_s, waited_s, busy_s

    def store(self, is_ours: bool, since_s: float, waited_s: float, busy_s: float) -> None:
        _SHARED.pack_into(self._shared, 0, is_ours, since_s, waited_s, busy_s)


def sides() -> list[Sharing]:
    """Return both sides, for two processes that inherit their `files`. It is the first one's turn."""
    found = []
    for channel in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
        memory = os.memfd_create("turns")
        os.ftruncate(memory, _SHARED.size)
        found.append(Sharing(channel, memory))
        found[-1].store(len(found) == 1, time.monotonic(), 0.0, 0.0)
    return found


class Turns:
    """The turns of one loop of timings, from the moment when both sides have begun it."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._count = 0
        self._said, self._heard = _BEGINS, sharing.hand_over(_BEGINS)
        self._began, self._began_waited_s = time.perf_counter(), sharing.waited[0]
        self._turn_began, self._is_fresh = self._began, True

    @property
    def waited_s(self) -> float:
        """Return how long this side has waited since the loop began."""
        return self._sharing.waited[0] - self._began_waited_s

    @property
    def is_long(self) -> bool:
        return time.perf_counter() - self._turn_began >= _TURN_S

    @property
    def suffice(self) -> bool:
        """Return whether there were enough turns to compare the sides."""
        own_s = time.perf_counter() - self._began - self.waited_s
        return self._count >= _LEAST_TURNS or own_s >= _LEAST_S

    def warms_up(self) -> bool:
        """Return whether what was just measured is the first of this turn, and does not fill it."""
        was_fresh, self._is_fresh = self._is_fresh, False
        return was_fresh and not self.is_long

    def end(self, *, has_enough: bool) -> bool:
        """End this turn and wait for the next, unless the loop is over, which is returned: both sides have
        enough of it, or the other one went on, or has ended."""
        self._count += 1
        if not (has_enough and self._other_is_done):
            self._said = _ENOUGH if has_enough else _MORE
            self._heard = self._sharing.hand_over(self._said)
            self._turn_began, self._is_fresh = time.perf_counter(), True
        return has_enough and self._other_is_done

    @property
    def _other_is_done(self) -> bool:
        went_on = self._heard == _BEGINS and self._said == _ENOUGH
        return went_on or self._heard in (_ENOUGH, _ENDED)


_sharing: list[Sharing] = []  # of this process: none or one


def begin() -> None:
    """Wait for the first turn of this process, if it takes turns by the variable `TURNS_VARIABLE`. Where
    OMP_NUM_THREADS leaves processors free, both sides use the same ones, whose clocks differ from others'."""
    files = [int(number) for number in os.environ.pop(TURNS_VARIABLE, "").split()]
    if files:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-default_threads() :])
        for file in files:
            os.set_inheritable(file, False)
        channel, memory = files
        _sharing.append(Sharing(socket.socket(fileno=channel), memory))
        _sharing[0].wait()


def resume() -> None:
    """Wait for our turn, where a stage was ended in the other side's."""
    for sharing in _sharing:
        sharing.wait()


def loop() -> Turns | None:
    """Begin a loop of timings together with the other side; None where there is none."""
    return next(map(Turns, _sharing), None)


def waited() -> tuple[float, float]:
    """Return for how many seconds this process has waited for turns, and for how many processors were busy
    meanwhile."""
    return _sharing[0].waited if _sharing else (0.0, 0.0)


def clock_s() -> float:
    """Return the time of a clock that stands still while the other side has its turn."""
    return time.monotonic() - waited()[0]
