"""Two texts side by side, with changed lines and changed words marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_CONTEXT = 3  # equal lines around a change
_MOST_LINES = 2000  # of a text that is compared
_TOKENS = re.compile(r"\w+|\s+|[^\w\s]")

Span = tuple[str, bool]  # text, whether it differs


@dataclass(frozen=True)
class Line:
    """A line of one side; `number` is None where the other side has more lines."""

    number: int | None
    spans: tuple[Span, ...] = ()
    changed: bool = False


@dataclass(frozen=True)
class Pair:
    """Two lines side by side, or with `skipped` so many equal lines that are left out."""

    left: Line
    right: Line
    skipped: int = 0


@dataclass(frozen=True)
class Diff:
    pairs: list[Pair]
    changed: int  # lines that differ, on the side with more of them
    total: int  # lines of the longer text

    @property
    def equal(self) -> bool:
        return not self.changed


def compare(left: str, right: str) -> Diff:
    """Return the differing lines with a few equal ones around them."""
    before, after = left.splitlines()[:_MOST_LINES], right.splitlines()[:_MOST_LINES]
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    pairs: list[Pair] = []
    changed = 0
    for place, (kind, i1, i2, j1, j2) in enumerate(blocks):
        if kind == "equal":
            pairs += _context(before, i1, i2, j1, first=place == 0, last=place == len(blocks) - 1)
            continue
        changed += max(i2 - i1, j2 - j1)
        for step in range(max(i2 - i1, j2 - j1)):
            i, j = i1 + step, j1 + step
            texts = before[i] if i < i2 else None, after[j] if j < j2 else None
            pairs.append(Pair(*_marked(*texts, i + 1, j + 1)))
    return Diff(pairs, changed, max(len(before), len(after)))


def whole(text: str) -> list[Line]:
    """Return the lines of a text that has no other side."""
    return [
        Line(number, ((line, False),)) for number, line in enumerate(text.splitlines()[:_MOST_LINES], start=1)
    ]


def _context(before: Sequence[str], i1: int, i2: int, j1: int, *, first: bool, last: bool) -> Iterator[Pair]:
    head = 0 if first else _CONTEXT
    tail = 0 if last else _CONTEXT
    skipped = (i2 - i1) - head - tail
    for step in range(i2 - i1):
        if skipped > 1 and head <= step < head + skipped:
            if step == head:
                yield Pair(Line(None), Line(None), skipped)
            continue
        spans = ((before[i1 + step], False),)
        yield Pair(Line(i1 + step + 1, spans), Line(j1 + step + 1, spans))


def _marked(left: str | None, right: str | None, i: int, j: int) -> tuple[Line, Line]:
    if left is None or right is None:
        return tuple(  # type: ignore[return-value]  # two
            Line(None) if text is None else Line(number, ((text, True),), changed=True)
            for text, number in ((left, i), (right, j))
        )
    tokens = _TOKENS.findall(left), _TOKENS.findall(right)
    spans: tuple[list[Span], list[Span]] = ([], [])
    for kind, *bounds in SequenceMatcher(None, *tokens, autojunk=False).get_opcodes():
        for side, (start, end) in enumerate((bounds[:2], bounds[2:])):
            if end > start:
                spans[side].append(("".join(tokens[side][start:end]), kind != "equal"))
    return Line(i, tuple(spans[0]), changed=True), Line(j, tuple(spans[1]), changed=True)
