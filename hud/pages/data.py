"""The JSON and CSV views of a page: the same rows under the same query string."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from django.http import Http404, HttpResponse

from hud.columns import EXPERIMENT, Columns
from hud.ingest.export import inert
from hud.points import read as points
from hud.problems import Problem

Rows = Sequence[Mapping[str, Any]]
_EXPERIMENT = " ".join(Columns(EXPERIMENT).names)
_POINT = " ".join(points.COLUMNS.names)
_HEADERS = {  # of a CSV without rows, by the name of the page
    "code": """cause kernel kind origins base_us head_us change_us share beyond_noise portion group slot
        base_choice head_choice base_config head_config base_binary head_binary base_calls head_calls""",
    "code-points": f"{_EXPERIMENT} points base head time stream",
    "compare": f"""{_EXPERIMENT} side stream metric unit direction base head base_n head_n base_status
        head_status change margin noise factor verdict reason base_run head_run""",
    "compare-sides": "side run stream title source filename branch commit host time",
    "experiment": f"""{_EXPERIMENT} stream {_POINT} placed_by host source commit branch environment
        environment_class torch torch_git""",
    "overview": f"list {_EXPERIMENT} {_POINT}",
    "run": f"{_EXPERIMENT} {_POINT} stream",
    "run-pairs": f"""{_EXPERIMENT} metric unit direction base new change low high p pairs draws verdict
        better cause at_base_draws at_new_draws detects_percent repeated base_status new_status base_values
        new_values draw_ratios""",
    "suite": f"{_EXPERIMENT} stream {_POINT}",
}


def answer(data_format: str, name: str, rows: Rows, header: Sequence[str] = (), **about: Any) -> HttpResponse:
    """Return `rows` as JSON or CSV, which without rows has the `header`; JSON has `about` beside them."""
    if data_format == "csv":
        page = re.sub(r"-\d+", "", name)
        header = header or (_HEADERS.get(page) or _HEADERS.get(page.partition("-")[0], "")).split()
        response = HttpResponse(to_csv(rows, header), content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{_filename(name)}.csv"'
        return response
    body = orjson.dumps({**about, "items": list(rows)}, option=orjson.OPT_NON_STR_KEYS)
    return HttpResponse(body, content_type="application/json")


def missing(data_format: str, text: str) -> HttpResponse:
    """Return 404 in the format that was asked for. Raise Http404 for a page."""
    if not data_format:
        raise Http404(text)
    return Problem(404, text).response()


def to_csv(rows: Rows, header: Sequence[str] = ()) -> str:
    """Return CSV with a header: `header` without rows. A quote goes before text that a spreadsheet runs."""
    names = list(dict.fromkeys(name for row in rows for name in row)) or header
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return inert(text)


def _filename(name: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in name)
