"""The audit log, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timezone

from django import forms
from django.db.models import Q

from hud.columns import Columns
from hud.models import Audit
from hud.pages.query_string import number, parameter, words

COLUMNS = Columns("id=pk at who action subject address detail")
PAGE_ROWS = 100
MOST_ROWS = 1000  # of one answer of the API


@dataclass(frozen=True)
class Filters:
    who: str = words(150)  # a part of the name
    action: str = words(60)  # `key.revoke`, or `key` for all of keys
    subject: str = words()  # a part of it
    since: date | None = parameter(forms.DateField(required=False), names=("from",))
    until: date | None = parameter(forms.DateField(required=False), names=("to",))  # with this day
    before: int | None = number()  # only rows with a smaller id: the next page


def read(filters: Filters, rows: int) -> tuple[list[Audit], int | None]:
    """Return a page of rows, and before which id the next page begins, None on the last one: 1 statement."""
    wanted = Q()
    if filters.who:
        wanted &= Q(who__icontains=filters.who)
    if filters.action:
        wanted &= Q(action=filters.action) | Q(action__startswith=f"{filters.action}.")
    if filters.subject:
        wanted &= Q(subject__icontains=filters.subject)
    if filters.since:
        wanted &= Q(at__gte=datetime.combine(filters.since, time.min, timezone.utc))
    if filters.until:
        wanted &= Q(at__lte=datetime.combine(filters.until, time.max, timezone.utc))
    if filters.before:
        wanted &= Q(pk__lt=filters.before)
    found = list(Audit.objects.filter(wanted).order_by("-pk")[: rows + 1])
    return found[:rows], found[rows - 1].pk if len(found) > rows else None
