"""Ties between parent and child processes, on Linux only."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to signal this process when its parent has ended in any way."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents die, so that it still finds them."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value)
