"""Are the processors ours? What they and this process were busy with, asked before and after."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.processes import below_me

_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_BUSY = (0, 1, 2, 5, 6, 7)  # of a line of /proc/stat: user, nice, system, irq, softirq, steal
_OWN = slice(11, 15)  # of /proc/N/stat, behind the name: user and system time, its own and of ended children
_ALLOWED = 0.1  # processors: what a quiet machine's services take; of a large one they take more
_ALLOWED_SHARE = 0.01  # of its processors
_ROUNDING_S = 0.1  # the kernel counts in ticks


@dataclass(frozen=True)
class CpuState:
    """Seconds so far: of the clock, of the processors that this process may use, and of those its own
    (with what is below it). `threads` are those that it measures with."""

    at_s: float
    busy_s: float
    own_s: float
    processors: int
    threads: int


def cpu_state(threads: int) -> CpuState | None:
    """None where the kernel does not count."""
    usable = os.sched_getaffinity(0)
    try:
        busy_s = busy_seconds(Path("/proc/stat").read_text().splitlines(), usable)
    except OSError:
        return None
    if not busy_s:
        return None
    return CpuState(time.monotonic(), busy_s, _own_seconds(), len(usable), threads)


def busy_seconds(lines: Iterable[str], processors: Iterable[int]) -> float:
    """Of these processors, by the lines of /proc/stat; time that a hypervisor gave to others counts."""
    names = {f"cpu{number}" for number in processors}
    rows = (line.split() for line in lines)
    return sum(int(row[1 + place]) for row in rows if row and row[0] in names for place in _BUSY) / _TICKS


def _own_seconds() -> float:
    return sum(_seconds_of(pid) for pid in (os.getpid(), *(process.pid for process in below_me())))


def _seconds_of(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended
        return 0.0
    return sum(map(int, text.rpartition(")")[2].split()[_OWN])) / _TICKS


def warning(first: CpuState, last: CpuState) -> str:
    """Says so where others took processors that were meant for us; '' where they did not."""
    seconds = last.at_s - first.at_s
    others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
    room = max(0, last.processors - last.threads)  # is theirs
    allowed = max(_ALLOWED, _ALLOWED_SHARE * last.processors)
    if others_s - room * seconds <= allowed * seconds + _ROUNDING_S:
        return ""
    return (
        f"other processes kept {others_s / seconds:.1f} of {last.processors} processors busy"
        f" while {last.threads} {'thread' if last.threads == 1 else 'threads'} measured"
    )
