"""The JSON and CSV views of a page: the same rows under the same query string."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from django.http import HttpResponse

from hud.ingest.export import csv_cell
from hud.tables.table import DataTable

Rows = Sequence[Mapping[str, Any]]


def answer(data_format: str, name: str, rows: Rows, header: Sequence[str] = (), **about: Any) -> HttpResponse:
    """Return `rows` as JSON or CSV, which without rows has the `header`; JSON has `about` beside them."""
    if data_format == "csv":
        response = HttpResponse(to_csv(rows, header), content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{_filename(name)}.csv"'
        return response
    body = orjson.dumps({**about, "items": list(rows)})
    return HttpResponse(body, content_type="application/json")


def answer_table(
    data_format: str,
    name: str,
    table: DataTable[Any, Any],
    rows: Iterable[Any],
    *,
    constant: Mapping[str, Any] | None = None,
    **about: Any,
) -> HttpResponse:
    """Return a table's rows as `answer` does, each with the `constant` values of all."""
    same = constant or {}
    items = [{**table.row(row), **same} for row in rows]
    return answer(data_format, name, items, (*table.names, *same), **about)


def to_csv(rows: Rows, header: Sequence[str] = ()) -> str:
    """Return CSV with a header: `header` without rows. A quote goes before text that a spreadsheet runs."""
    names = list(dict.fromkeys(name for row in rows for name in row)) or header
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(names)
    writer.writerows([csv_cell(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def _filename(name: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in name)
