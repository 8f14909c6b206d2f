"""Programs that run in the foreground, and ties between parent and child processes, on Linux only."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from django.conf import settings

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_MOST_HEAPS = -8  # M_ARENA_MAX of glibc


@dataclass(frozen=True)
class Program:
    """One process, in its own session."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 10  # patience before SIGKILL


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent has ended in any way."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents die, so that it still finds them."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def use_one_heap() -> None:
    """Make the threads that are started from now on share one heap. By default each gets its own, and keeps
    what it has freed of a large upload."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MOST_HEAPS, 1)


def read_settings() -> None:
    """Read the settings of Django, and end this process with the words about one that is wrong."""
    try:
        settings.DEBUG  # noqa: B018 - the first one reads all
    except ValueError as error:
        sys.exit(str(error))


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value)
