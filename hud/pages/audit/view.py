"""The audit log, for admins."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString

from hud.accounts.audit import COLUMNS, KINDS, read
from hud.models import Audit
from hud.pages import data, query_string
from hud.pages.query_string import day, number, words
from hud.tables.formatting import json_text, second
from hud.tables.html import NOTHING, element, facts, join, link
from hud.tables.table import Column, DataTable

PAGE_ROWS = 100
_MOST_DETAIL = 60  # characters beside a closed detail


@dataclass(frozen=True)
class AuditFilters:
    who: str = words(150, label="Who")  # a part of the name
    action: str = words(60, label="Action")  # `key.revoke`, or `key` for all of keys
    subject: str = words(label="Subject")  # a part of it
    since: date | None = day(names=("from",), label="From")
    until: date | None = day(names=("to",), label="To")  # with this day
    before: int | None = number()  # only rows with a smaller id: the next page


def _narrowing(name: str) -> Callable[[Audit, Mapping[str, str]], SafeString]:
    """Return what draws a value as a link to the rows that share it; the page has the rest of its query."""

    def draw(row: Audit, others: Mapping[str, str]) -> SafeString:
        value = getattr(row, name)
        return link(f"?{name}={quote(value, safe='')}{others[name]}", value) if value else NOTHING

    return draw


def _detail(row: Audit, _page: object) -> SafeString:
    if not row.detail:
        return NOTHING
    brief = json_text(row.detail)
    brief = brief if len(brief) <= _MOST_DETAIL else f"{brief[: _MOST_DETAIL - 1]}…"
    terms = ((name, json_text(value)) for name, value in row.detail.items())
    return element("details", join(element("summary", brief), facts(terms)))


NARROWED = ("who", "action", "subject")
_ROWS = DataTable[Audit, Mapping[str, str]](
    *COLUMNS.columns,
    Column("", "Time", "at", show=second, css="when", is_head=True),
    Column("", "Who", draw=_narrowing("who"), cell_css="file"),
    Column("", "Action", draw=_narrowing("action")),
    Column("", "Subject", draw=_narrowing("subject"), cell_css="file"),
    Column("", "Address", "address"),
    Column("", "Detail", draw=_detail, cell_css="long"),
)


def audit(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(AuditFilters, request.GET, data_format)
    rows, next_before = read(asdict(filters), PAGE_ROWS)
    if data_format:
        return data.answer_table(data_format, "audit", COLUMNS, rows, next=next_before)
    clear = reverse("audit")
    others = {name: query_string.without(request.GET, name, "before") for name in NARROWED}
    context = {
        "form": query_string.filter_form(filters, suggested={"action": KINDS}, clear=clear),
        "table": _ROWS.html(
            rows, others, caption="Newest first, times in UTC", empty=query_string.none_matches(clear)
        ),
        "filters": filters,
        "next_before": next_before,
        "complaints": complaints,
    }
    return render(request, "audit/audit.html", context)
