"""Do other processes use the processors? Compares their time with ours, before and after."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.system.processes import below_me

_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_BUSY = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, irq, softirq, steal
_OWN = slice(11, 15)  # of /proc/N/stat after the name: user and system time, its own and of ended children
_ALLOWED = 0.1  # processors: what the services of a quiet machine take
_ALLOWED_SHARE = 0.01  # of all processors: on a large machine its services take more
_ROUNDING_S = 0.1  # the kernel counts in ticks


@dataclass(frozen=True)
class CpuState:
    """Seconds so far: `at_s` on the clock, `busy_s` of all processors that this process may use, `own_s` of
    this process and those below it. `threads` is how many it measures with."""

    at_s: float
    busy_s: float
    own_s: float
    processors: int
    threads: int


def cpu_state(threads: int) -> CpuState | None:
    """Return the times so far; None if the kernel does not count them."""
    usable = os.sched_getaffinity(0)
    try:
        busy_s = busy_seconds(Path("/proc/stat").read_text().splitlines(), usable)
    except OSError:
        return None
    if not busy_s:
        return None
    return CpuState(time.monotonic(), busy_s, _own_seconds(), len(usable), threads)


def busy_seconds(lines: Iterable[str], processors: Iterable[int]) -> float:
    """Return the busy time of these processors from the lines of /proc/stat; stolen time counts."""
    names = {f"cpu{number}" for number in processors}
    rows = (line.split() for line in lines)
    return sum(int(row[1 + place]) for row in rows if row and row[0] in names for place in _BUSY) / _TICKS


def _own_seconds() -> float:
    ticks = 0
    for pid in (os.getpid(), *(process.pid for process in below_me())):
        with contextlib.suppress(OSError):  # it has ended
            text = Path(f"/proc/{pid}/stat").read_text()
            ticks += sum(map(int, text.rpartition(")")[2].split()[_OWN]))
    return ticks / _TICKS


def warning(first: CpuState, last: CpuState) -> str:
    """Return a warning if other processes took processors that we measured on, else ''."""
    seconds = last.at_s - first.at_s
    others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
    room = max(0, last.processors - last.threads)  # processors that others may use
    allowed = max(_ALLOWED, _ALLOWED_SHARE * last.processors)
    if others_s - room * seconds <= allowed * seconds + _ROUNDING_S:
        return ""
    return (
        f"other processes kept {others_s / seconds:.1f} of {last.processors} processors busy"
        f" while {last.threads} {'thread' if last.threads == 1 else 'threads'} measured"
    )
