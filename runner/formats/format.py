"""The interface of an outside format: `Format`, and `Writer` for those that we also write."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from runner.formats import reasons
from runner.formats.errors import Fault
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from runner.schema.records import Record
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import TaskResult

_PEEK_BYTES = 1 << 16
_MAX_HEADER_BYTES = 1 << 18
_T = TypeVar("_T")


@dataclass(slots=True)
class LocatedRecord:
    """A record and its place. `hints` are upload parameters that the file's name suggests, used last. `row`
    is the whole row of a table to which rows are appended: another row of the same experiment is a repeat.
    `is_expected`: it says what is expected, and nothing measured; so does each record that has a target and
    no value. `is_cut`: it may lack its end."""

    record: Record
    pointer: str
    line: int | None = None
    hints: Mapping[str, str] | None = None
    row: tuple[str, ...] | None = None
    is_expected: bool = False
    is_cut: bool = False


@dataclass(frozen=True)
class Skipped:
    """A part of a file that is no measurement, with one of `reasons`."""

    pointer: str
    reason: str
    line: int | None = None

    @property
    def kind(self) -> str:
        return reasons.kind_of(self.reason)

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"pointer": self.pointer, "reason": self.reason, "kind": self.kind}
        return entry if self.line is None else {**entry, "line": self.line}


@dataclass(frozen=True)
class FileWarning:
    """A warning about the whole file; the receipt has it once. `is_partial`: the file is not whole, so that
    none of its values decides anything; it comes before the records."""

    text: str
    is_partial: bool = False


Item = LocatedRecord | Skipped | Fault | FileWarning


def each(parts: Iterable[_T | Fault], read: Callable[[_T], Iterable[Item]]) -> Iterator[Item]:
    """Yield what `read` makes of each row or JSON value, and the faults among these."""
    for part in parts:
        if isinstance(part, Fault):
            yield part
        else:
            yield from read(part)


class Preview:
    """The beginning of a body, by which formats recognise their own."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.start = body[:_PEEK_BYTES]
        self.is_json = is_json(body)

    def columns(self, delimiter: str = ",") -> list[str]:
        """Return the cells of the first row that is not blank, [] if the body is no text table."""
        start = self._body[:_MAX_HEADER_BYTES].lstrip(b"\xef\xbb\xbf").lstrip()
        if start[:1] in {b"", b"{", b"["}:
            return []
        try:
            line = re.split(rb"[\r\n]", start, maxsplit=1)[0].decode()
            return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
        except (UnicodeDecodeError, csv.Error):
            return []

    @cached_property
    def first_value(self) -> Any:
        """Return the first JSON value, or None."""
        from runner.formats.json_text import first_value

        return first_value(self._body)

    def names(self, *keys: str) -> bool:
        """Return whether the body begins like JSON and its first 64 KiB name all of these keys."""
        return self.is_json and all(f'"{key}"'.encode() in self.start for key in keys)


def has_keys(value: Any, keys: Mapping[str, type]) -> bool:
    """Return whether the value is a JSON object with these keys, of these types."""
    return isinstance(value, dict) and all(isinstance(value.get(key), kind) for key, kind in keys.items())


def is_json(body: bytes) -> bool:
    return body[:_PEEK_BYTES].lstrip()[:1] in {b"[", b"{"}


class Writer:
    """Write the files of one `--output` as an outside system does (`--format upstream`): one file or folder,
    complete after each task. What a file cannot represent is left out."""

    name: str
    suites: tuple[str, ...]
    default_file = ""  # what the system's own script writes where no file is named
    known: Collection[str] = ()  # settings of a task that the files can say

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, finished: TaskResult) -> list[Path]:
        """Write a task that the files can hold; return those that hold something of it."""
        raise NotImplementedError

    def places(self, task: TaskSpec) -> Collection[str]:
        """Return names by which the files tell results apart."""
        raise NotImplementedError

    def files(self, _tasks: Sequence[TaskSpec]) -> Collection[Path]:
        """Return everything that will be written for these tasks."""
        return [self._path]

    def unsupported_reason(self, task: TaskSpec) -> str:
        """Return why the files cannot hold a task, or ''."""
        names = sorted(set(task.identity()).difference(self.known))
        return f"it cannot say {', '.join(names)}" if names else ""

    def check_places(self, tasks: Sequence[TaskSpec]) -> None:
        """Raise BadRequest where several of these tasks would have one place in the files."""
        counts = Counter(row for task in tasks for row in self.places(task))
        for cell, count in counts.items():
            if count > 1:
                raise BadRequest(
                    f"--format upstream: {self.name}'s file has one place for {cell}, which is to be"
                    f" measured {count} times; --format ours and v3 keep all"
                )


Read = Callable[[bytes, str], Iterator[Item]]  # raises BadUpload where the body has no records
Describe = Callable[[ParsedMeasurement, Record, Parameters], None]


@dataclass(frozen=True)
class Format:
    """An outside format. `describe` maps a record's benchmark name to the function that completes its
    measurement; `said_by_name` returns what only the file's name says."""

    name: str
    matches: Callable[[Preview], bool]
    read: Read
    describe: Mapping[str, Describe] = field(default_factory=dict)
    said_by_name: Callable[[str], Mapping[str, str]] = lambda _filename: {}
    writer: type[Writer] | None = None
    # whether the tool appends to such a file, which may be uploaded after each run
    grows: Callable[[bytes], bool] = lambda _body: False

    def items(self, body: bytes, filename: str) -> Iterator[Item]:
        """Read a body as far as it is whole: leave out a last line that is cut off, and mark the records of a
        last row without a line end, whose number may go on. Raise BadUpload as `read` does."""
        start = body.rfind(b"\n") + 1  # of the last line
        first, last = body[: max(body.find(b"\n"), 0)], body[start:]
        if last.strip() and _is_cut(first, last):
            yield FileWarning(_CUT, is_partial=True)
            body, last = body[:start], b""
        columns = Counter(_cells(first or last))
        if twice := b", ".join(name for name, count in columns.items() if name and count > 1):
            yield FileWarning(f"columns stand twice: {twice[:100].decode(errors='replace')}", is_partial=True)
        open_line = body.count(b"\n") + 1 if last.strip() and not is_json(body) else None
        for item in self.read(body, filename):
            if open_line and isinstance(item, LocatedRecord) and item.line == open_line:
                item.is_cut = True
                yield FileWarning(_OPEN)
            yield item


_CUT = "the last line ends too early, and is left out"
_OPEN = "the last row has no line end: it may be cut off, and its values decide nothing"


def _cells(line: bytes) -> list[bytes]:
    """Return the cells of a table's line, without regard to quotes; [] of JSON and of logs."""
    return [] if b"{" in line or is_json(line) else re.split(b"[,;]", line[:_MAX_HEADER_BYTES].strip())


def _is_cut(first: bytes, last: bytes) -> bool:
    """Return whether the last line, which has no end, is cut off for sure: no JSON below a line of JSON, or a
    row with fewer cells than the first."""
    if is_json(first):
        return is_value(first) and not is_value(last)
    return bool(first) and len(_cells(last)) < len(_cells(first))


def is_value(line: bytes | str) -> bool:
    """Return whether a line is a whole JSON value."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def either(of_json: Format, of_tables: Format) -> Format:
    """Return the format of files that are JSON or a table."""
    return replace(
        of_tables,
        matches=lambda preview: (of_json if preview.is_json else of_tables).matches(preview),
        read=lambda body, filename: (of_json if is_json(body) else of_tables).read(body, filename),
    )
