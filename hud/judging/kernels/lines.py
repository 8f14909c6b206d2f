"""Kernels by the lines of the model that they come from. A kernel of several lines counts for each in equal
parts."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hud.judging.kernels.attribution import Change
from hud.tables.formatting import signed
from hud.tables.html import element
from hud.tables.table import Column, DataTable

UNKNOWN = "unknown"
BY_CLASS = "class"  # else by line


@dataclass
class SourceLine:
    """A line, or a class with its file; times in µs of a step."""

    name: str
    base_us: float = 0.0
    head_us: float = 0.0
    kernels: int = 0

    @property
    def change_us(self) -> float:
        return self.head_us - self.base_us


def _us(time_us: float) -> str:
    return f"{time_us:,.1f}"


LINES = DataTable[SourceLine](
    Column("line", "Line", "name", show=lambda name: element("code", name), is_head=True),
    Column("base_us", "Baseline", show=_us, css="num", label="Baseline"),
    Column("head_us", "Candidate", show=_us, css="num", label="Candidate"),
    Column("change_us", "Change", show=lambda us: signed(us, 1), css="num", label="Change"),
    Column("kernels", "Kernels", css="num", label="Kernels"),
)


def class_of(line: str) -> str:
    """Return file and class of a line: `gpt2.py GPT2MLP` of `gpt2.py:214 GPT2MLP.forward`."""
    place, _, function = line.partition(" ")
    return f"{place.partition(':')[0]} {function.rpartition('.')[0] or function}".strip()


def without_folders(lines: Iterable[str]) -> str:
    return ", ".join(line.rpartition("/")[2] for line in lines)


def by_line(changes: Iterable[Change], by: str) -> list[SourceLine]:
    """Return the lines, or with `BY_CLASS` the classes, the largest change first; [] if none is known."""
    sums: defaultdict[str, SourceLine] = defaultdict(lambda: SourceLine(""))
    for change in changes:
        names = lines_of(change) or (UNKNOWN,)
        for name in names:
            key = class_of(name) if by == BY_CLASS and name != UNKNOWN else name
            line = sums[key]
            line.name = key
            line.base_us += (change.base_us or 0.0) / len(names)
            line.head_us += (change.head_us or 0.0) / len(names)
            line.kernels += 1
    if sums.keys() <= {UNKNOWN}:
        return []
    return sorted(
        sums.values(), key=lambda line: (-abs(line.change_us), -line.head_us, -line.kernels, line.name)
    )


def lines_of(change: Change) -> Sequence[str]:
    sides = [side.lines for side in (change.head, change.base) if side and side.lines]
    return sides[0] if sides else ()
