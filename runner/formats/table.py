"""CSV as all its formats read it: rows with the line they begin on, cells as texts."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.formats import Placed
from runner.formats.errors import BadUpload, Fault, MalformedUpload

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_MAX_HEADER_BYTES = 1 << 18


@dataclass(frozen=True)
class Row:
    line: int
    cells: list[str]


def header(body: bytes) -> list[str]:
    """The cells of the first row, [] where the body is no text table."""
    start = body[:_MAX_HEADER_BYTES].lstrip(b"\xef\xbb\xbf").lstrip()
    if start[:1] in {b"", b"{", b"["}:
        return []
    try:
        line = re.split(rb"[\r\n]", start, maxsplit=1)[0].decode()
        return next(csv.reader([line]), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def rows(body: bytes) -> Iterator[Row]:
    """Every row that is not blank. Raises MalformedUpload; BadUpload for a NUL character."""
    if b"\0" in body:
        line = body[: body.index(b"\0")].count(b"\n") + 1
        raise BadUpload("a text holds a NUL character", [Fault("", "NUL character", line)])
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(body), "utf-8-sig", newline=""), strict=True)
    line = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            fault = Fault(
                "", str(error), reader.line_num + 1 if isinstance(error, UnicodeError) else line, True
            )
            raise MalformedUpload("the body is not CSV in UTF-8", [fault]) from error
        if any(cell.strip() for cell in cells):
            yield Row(line, [cell.strip() for cell in cells])
        line = reader.line_num + 1


def below(lines: Iterator[Row], header: list[str]) -> Iterator[Row]:
    """The rows of a table without its header, which stands again where two files were put together."""
    return (row for row in lines if row.cells != header)


def number(text: str) -> float | None:
    """The finite number that a text holds, and nothing else; None for any other text."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def pointer(column: str) -> str:
    """The place of a cell within its row, as a JSON pointer's last step."""
    return "/" + column.replace("~", "~0").replace("/", "~1")


def not_a_number(row: Row, column: str, text: str) -> Placed:
    place = pointer(column)
    return Placed(None, place, row.line, fault=Fault(place, f"{text[:60]!r} is not a number", row.line))


def too_long(row: Row, columns: int) -> Placed:
    detail = f"the row has {len(row.cells)} cells, the header {columns}"
    return Placed(None, "", row.line, fault=Fault("", detail, row.line))
