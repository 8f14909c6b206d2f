"""CSV as all its formats read it: rows with the line they begin on, cells as texts."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from runner.formats.errors import BadUpload, Fault, MalformedUpload

Fits = Callable[[list[str]], bool]  # of a header
Names = Callable[[list[str]], list[str]]  # of columns, by the first row
_MAX_CELLS = 20_000  # in a row; torchdynamo's widest has some hundred
_MAX_BLANK = 200_000  # rows


@dataclass(frozen=True)
class Row:
    line: int
    cells: list[str]

    def by_column(self, columns: list[str], missing: Any = "") -> dict[str, Any]:
        """Return the cells under their columns, with what a short row has in its last ones."""
        return dict(zip_longest(columns, self.cells, fillvalue=missing))

    def fault(self, detail: str, column: str = "") -> Fault:
        return Fault(pointer(column) if column else "", detail, self.line)


def rows(body: bytes, delimiter: str = ",") -> Iterator[Row]:
    """Yield every row that is not blank. Raise MalformedUpload, or BadUpload for a NUL character."""
    if b"\0" in body:
        line = body[: body.index(b"\0")].count(b"\n") + 1
        raise BadUpload("a text holds a NUL character", [Fault("", "NUL character", line)])
    blank = 0
    lines = io.TextIOWrapper(io.BytesIO(body), "utf-8-sig", newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if len(cells) > _MAX_CELLS:
                raise MalformedUpload("no table is that wide", [Fault("", f"over {_MAX_CELLS} cells", line)])
            if any(cell.strip() for cell in cells):
                yield Row(line, [cell.strip() for cell in cells])
            elif (blank := blank + 1) > _MAX_BLANK:
                detail = f"over {_MAX_BLANK} blank rows"
                raise MalformedUpload("the table is blank", [Fault("", detail, line)])
            line = reader.line_num + 1
    except (csv.Error, UnicodeDecodeError) as error:
        number = reader.line_num + 1 if isinstance(error, UnicodeError) else line
        fault = Fault("", str(error), number, malformed=True)
        raise MalformedUpload("the body is not CSV in UTF-8", [fault]) from error


def table(
    body: bytes,
    fits: Fits,
    what: str,
    *,
    delimiter: str = ",",
    names: Names | None = None,
    whole_rows: bool = False,
) -> tuple[list[str], Iterator[Row | Fault]]:
    """Return the columns and the rows below them, with a Fault for a row that has more cells than the header,
    or fewer where `whole_rows`. Skip repeated headers, as in concatenated files. `names` returns the columns
    of a file without header. Raise BadUpload if the header, or there the first row, does not fit."""
    lines = rows(body, delimiter)
    first = next(lines, None)
    if first is None or not fits(first.cells):
        raise BadUpload(
            f"this is no {what}", [Fault("", "it has other columns", first.line if first else None)]
        )
    columns = names(first.cells) if names else first.cells
    return columns, (
        row.fault(f"the row has {len(row.cells)} cells, the header {len(columns)}")
        if len(row.cells) > len(columns) or (whole_rows and len(row.cells) < len(columns))
        else row
        for row in (chain([first], lines) if names else lines)
        if row.cells != columns
    )


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@dataclass
class TableFile:
    """A CSV with JSON lines beside it, both complete after each row that is added."""

    path: Path
    columns: list[str]
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)

    def add(self, columns: Iterable[str], row: Mapping[str, Any], records: Sequence[Any]) -> list[Path]:
        """Add a row and write the files. Rows may differ in their columns: the header has all of them."""
        self.columns += [name for name in columns if name not in self.columns]
        self.rows.append(row)
        self.records += records
        cells = [[_cell(each.get(name)) for name in self.columns] for each in self.rows]
        lines = self.path.with_suffix(".json")
        self.path.write_text(csv_text([self.columns, *cells]))
        lines.write_text("".join(json.dumps(record) + "\n" for record in self.records))
        return [self.path, lines]


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def pointer(column: str) -> str:
    """Return the place of a cell within its row, as a JSON pointer's last step."""
    return "/" + column.replace("~", "~0").replace("/", "~1")
