"""What one run says of one series: the only place where processes and compilations become one value.

A process gives a value from its samples (`runner.schema.suite.value_rule`). A compilation's value is the
median over its processes, the point's value the median over its compilations. Standard library only.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runner.schema.records import worst_quality
from runner.schema.statistics import median, severity, spread

_MOST_NOTES = 3  # of as many processes of one run


class Process(NamedTuple):
    """One fresh process of a run: what one measurement says of a metric."""

    repeat: int
    compilation: int | None  # its number in the run; None counts as one of its own
    value: float | None
    spread: float | None  # relative, of its samples
    samples: int
    status: str  # of runner.schema.records.STATUSES
    code: str | None = None  # the outside system's own word
    note: str | None = None
    target: float | None = None
    target_arch: str | None = None
    variant: str | None = None  # fingerprint of the compilation's choices
    quality: str | None = None  # why its value may not decide


class Point(NamedTuple):
    """The value of a run in a series. `values`, `variants` and `counts` have an entry for each compilation,
    in order; they are None for a single one, but for a variant that is known."""

    value: float | None
    values: list[float | None] | None
    variants: list[str | None] | None
    counts: list[int] | None  # samples
    compilations: int
    processes: int
    samples: int
    spread: float | None  # over compilations if several have a value, else inside a process
    status: str
    code: str | None
    note: str | None
    target: float | None
    target_arch: str | None
    quality: str | None  # the worst of its processes'; None: it may decide


def point_of(processes: Sequence[Process]) -> Point:
    """Return the point of a run's processes, in the order of their repeats.

    It has a value if at least half of its compilations have one. Its status, code and note are those of the
    worst process; its quality is the worst of theirs. Raise ValueError without processes.
    """
    if len(processes) == 1:  # of nearly all points: 4 µs, where the general way takes 39
        (only,) = processes
        # status, code, note and target are the next fields of both
        own: list[str | None] | None = [only.variant] if only.variant else None
        return Point(only.value, None, own, None, 1, 1, only.samples, only.spread, *only[5:10], only.quality)
    by_compilation: dict[int, list[Process]] = {}
    for process in processes:
        # a process that names no compilation counts as one
        key = -1 - process.repeat if process.compilation is None else process.compilation
        by_compilation.setdefault(key, []).append(process)
    values = [_median(process.value for process in own) for own in by_compilation.values()]
    variants = [next((each.variant for each in own if each.variant), None) for own in by_compilation.values()]
    measured = [value for value in values if value is not None]
    inside = [process.spread for process in processes if process.spread is not None]
    worst = max(processes, key=lambda process: severity(process.status))
    target = next((process for process in processes if process.target is not None), worst)
    is_single = len(values) == 1
    return Point(
        value=median(measured) if measured and 2 * len(measured) >= len(values) else None,
        values=None if is_single else values,
        variants=variants if any(variants) else None,
        counts=None if is_single else [sum(each.samples for each in own) for own in by_compilation.values()],
        compilations=len(values),
        processes=len(processes),
        samples=sum(process.samples for process in processes),
        spread=spread(measured) if len(measured) > 1 else _median(inside),
        status=worst.status,
        code=worst.code,
        note=_note(processes, worst.status),
        target=target.target,
        target_arch=target.target_arch,
        quality=worst_quality(process.quality for process in processes) or None,
    )


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None


def _note(processes: Sequence[Process], status: str) -> str | None:
    """Join the notes of the processes with the worst status; each of several may have its own numbers."""
    notes = list(dict.fromkeys(each.note for each in processes if each.status == status and each.note))
    missing = sum(process.value is None for process in processes)
    if 0 < missing < len(processes):
        notes.insert(0, f"{missing} of {len(processes)} processes gave no number")
    more = [f"and {len(notes) - _MOST_NOTES} more like these"] if len(notes) > _MOST_NOTES else []
    return "; ".join([*notes[:_MOST_NOTES], *more]) or None
