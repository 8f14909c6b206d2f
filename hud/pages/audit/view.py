"""The audit log, for admins."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.accounts.audit import KINDS
from hud.pages import data, query_string
from hud.pages.audit import query


def audit(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.Filters, request.GET, data_format)
    rows, next_before = query.read(filters, query.PAGE_ROWS)
    if data_format:
        items, header = query.COLUMNS.rows(rows), query.COLUMNS.names
        return data.answer(data_format, "audit", items, header, next=next_before)
    about = {"filters": filters, "kinds": KINDS, "complaints": complaints}
    return render(request, "audit/audit.html", {"rows": rows, "next_before": next_before, **about})
