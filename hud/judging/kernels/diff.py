"""Two texts side by side, with changed lines and changed words marked."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

_CONTEXT = 3  # equal lines around a change
_MOST_LINES = 2000  # of a text that is compared
_TOKENS = re.compile(r"\w+|\s+|[^\w\s]")

Span = tuple[str, bool]  # text, whether it differs


@dataclass(frozen=True)
class CodeLine:
    """A line of one side; `number` is None where the other side has more lines."""

    number: int | None
    spans: tuple[Span, ...] = ()
    changed: bool = False


@dataclass(frozen=True)
class Pair:
    """Two lines side by side, or with `skipped` so many equal lines that are left out."""

    left: CodeLine
    right: CodeLine
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
    pairs: list[Pair] = []
    changed = shown = 0
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(_CONTEXT):
        pairs += _skipped(group[0][1] - shown)
        for kind, i1, i2, j1, j2 in group:
            lines = list(zip_longest(before[i1:i2], after[j1:j2]))
            changed += len(lines) if kind != "equal" else 0
            pairs += [Pair(*_marked(*texts, i1 + at, j1 + at)) for at, texts in enumerate(lines, start=1)]
        shown = group[-1][2]
    pairs += _skipped(len(before) - shown)
    return Diff(pairs, changed, max(len(before), len(after)))


def _skipped(lines: int) -> list[Pair]:
    return [Pair(CodeLine(None), CodeLine(None), lines)] if lines else []


def whole(text: str) -> list[CodeLine]:
    """Return the lines of a text that has no other side."""
    lines = enumerate(text.splitlines()[:_MOST_LINES], start=1)
    return [CodeLine(number, ((line, False),)) for number, line in lines]


def _marked(left: str | None, right: str | None, i: int, j: int) -> tuple[CodeLine, CodeLine]:
    if left is not None and left == right:
        return CodeLine(i, ((left, False),)), CodeLine(j, ((left, False),))
    if left is None or right is None:
        return tuple(  # type: ignore[return-value]  # two
            CodeLine(None) if text is None else CodeLine(number, ((text, True),), changed=True)
            for text, number in ((left, i), (right, j))
        )
    tokens = _TOKENS.findall(left), _TOKENS.findall(right)
    spans: tuple[list[Span], list[Span]] = ([], [])
    for kind, *bounds in SequenceMatcher(None, *tokens, autojunk=False).get_opcodes():
        for side, (start, end) in enumerate((bounds[:2], bounds[2:])):
            if end > start:
                spans[side].append(("".join(tokens[side][start:end]), kind != "equal"))
    return CodeLine(i, tuple(spans[0]), changed=True), CodeLine(j, tuple(spans[1]), changed=True)
