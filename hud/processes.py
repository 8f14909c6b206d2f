"""Ties between processes, as Linux knows them. Elsewhere they are simply not tied."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Asks the kernel to signal this process when the one that started it is gone, however it went."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parents die: `descendants` still finds them."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[int]:
    """Process numbers of all living children, grandchildren and so on of this process."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # the name stands in brackets and may hold anything: what counts is behind the last one
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    found = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value)
