"""The part of a task's log that a page shows, with the numbers of its lines, and its first error."""

import re
from dataclasses import dataclass

from hud.models import Task
from hud.runs import logs

_SHOWN_BYTES = 128 * 1024
_SHOWN_LINES = 1000
_BEFORE = 100  # lines above one that was asked for
_SEARCHED_BYTES = 512 * 1024  # for the first error
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07|[\x00-\x08\x0b\x0c\x0e-\x1f]")
# The last line of a traceback, and what kernels, CUDA and our runner write when a process dies
ERROR = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?:[\w.]+(?:Error|Exception|Failed|Failure)\b(?:: .*)?$|Fatal Python error"
    r"|Segmentation fault|Killed|Aborted|.*\bCUDA error\b|ERROR\b|FAILED\b)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class LogLine:
    number: int
    text: str

    @property
    def is_error(self) -> bool:
        return bool(ERROR.match(self.text))


@dataclass(frozen=True)
class LogView:
    """Lines of a task's log. `pinned`: the reader chose the task, so the page stays at it."""

    task: Task
    lines: list[LogLine]
    start: int  # bytes before the first line
    end: int  # bytes up to the end of the last one
    pinned: bool
    chosen: int | None = None  # the line that was asked for

    @property
    def first(self) -> int:
        return self.lines[0].number if self.lines else 1

    @property
    def last(self) -> int:
        return self.lines[-1].number if self.lines else 0

    @property
    def earlier(self) -> int | None:
        """Return the last line before those that are shown."""
        return self.first - 1 if self.start else None

    @property
    def later(self) -> int | None:
        return self.last + 1 if self.end < self.task.log_bytes else None


def read(task: Task, *, pinned: bool, line: int | None = None) -> LogView:
    """Return the last lines of a log, or where line `line` is before those, the part around it."""
    body = logs.read(task, 0, task.log_bytes)
    start = max(0, len(body) - _SHOWN_BYTES)
    if start:
        start = body.find(b"\n", start) + 1 or start
    number = body.count(b"\n", 0, start) + 1
    if line is not None and line < number:
        number, start = max(1, line - _BEFORE), 0
        for _ in range(number - 1):
            start = body.find(b"\n", start) + 1
    piece = body[start : start + _SHOWN_BYTES]
    if start + len(piece) < len(body):
        piece = piece[: piece.rfind(b"\n") + 1] or piece
    rows = _LINES.findall(piece)
    first = max(0, len(rows) - _SHOWN_LINES)
    if line is not None and line < number + first:
        first = max(0, line - _BEFORE - number)
    start, number = start + sum(map(len, rows[:first])), number + first
    piece = b"".join(rows[first : first + _SHOWN_LINES])
    texts = readable(piece).removesuffix("\n").split("\n") if piece else []
    lines = [LogLine(number + index, text) for index, text in enumerate(texts)]
    return LogView(task, lines, start, start + len(piece), pinned, line)


def first_error(task: Task) -> LogLine | None:
    """Return the first line of a log that tells an error, looked for in its first half megabyte."""
    text = readable(logs.read(task, 0, _SEARCHED_BYTES))
    found = ERROR.search(text)
    if found is None:
        return None
    end = text.find("\n", found.start())
    return LogLine(text.count("\n", 0, found.start()) + 1, text[found.start() : end if end >= 0 else None])


def readable(piece: bytes) -> str:
    """Decode a piece of a log without terminal codes; of a progress bar only its last state."""
    text = _TERMINAL_CODES.sub("", piece.decode("utf-8", "replace").replace("\r\n", "\n"))
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n")) if "\r" in text else text
