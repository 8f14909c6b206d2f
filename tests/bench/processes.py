"""CPU time and memory of other processes, from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_PARENT, _ENDED = 1, slice(13, 15)  # fields of /proc/<pid>/stat after the name


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for process, fields in _all():
        children.setdefault(int(fields[_PARENT]), []).append(process)
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def cpu_ms(root: int) -> float:
    """CPU time of a process and its descendants, those that ended and were waited for included."""
    members = set(tree(root))
    ended = sum(sum(map(int, fields[_ENDED])) for process, fields in _all() if process in members)
    return ended * _TICK_MS + sum(own_ms(process) for process in members)


def own_ms(process: int) -> float:
    """CPU time of the threads of a process alone; finer than the ticks of its `stat`."""
    nanoseconds = 0
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError):
            nanoseconds += int(thread.read_text().split()[0])
    return nanoseconds / 1e6


def memory_mib(process: int, field: str = "VmHWM") -> float:
    """A line of /proc/<pid>/status: VmHWM is the peak of what was resident, shared memory included."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise ValueError(f"process {process} has no {field}")


def _all() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()
