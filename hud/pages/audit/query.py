"""The audit log, newest first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from urllib.parse import quote

from django.db.models import Q
from django.utils.safestring import SafeString

from hud.models import Audit
from hud.pages.query_string import day, number, words
from hud.tables.formatting import json_text, second
from hud.tables.html import NOTHING, element, facts, join, link
from hud.tables.table import Column, DataTable

PAGE_ROWS = 100
MOST_ROWS = 1000  # of one answer of the API
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
ROWS = DataTable[Audit, Mapping[str, str]](
    "id=pk",
    Column("at", "Time", show=second, css="when", is_head=True),
    Column("who", "Who", draw=_narrowing("who"), cell_css="file"),
    Column("action", "Action", draw=_narrowing("action")),
    Column("subject", "Subject", draw=_narrowing("subject"), cell_css="file"),
    Column("address", "Address"),
    Column("detail", "Detail", draw=_detail, cell_css="long"),
)


def read(filters: AuditFilters, rows: int) -> tuple[list[Audit], int | None]:
    """Return a page of rows, and before which id the next page begins, None on the last one: 1 statement."""
    condition = Q()
    if filters.who:
        condition &= Q(who__icontains=filters.who)
    if filters.action:
        condition &= Q(action=filters.action) | Q(action__startswith=f"{filters.action}.")
    if filters.subject:
        condition &= Q(subject__icontains=filters.subject)
    if filters.since:
        condition &= Q(at__gte=datetime.combine(filters.since, time.min, timezone.utc))
    if filters.until:
        condition &= Q(at__lte=datetime.combine(filters.until, time.max, timezone.utc))
    if filters.before:
        condition &= Q(pk__lt=filters.before)
    audits = list(Audit.objects.filter(condition).order_by("-pk")[: rows + 1])
    return audits[:rows], audits[rows - 1].pk if len(audits) > rows else None
