"""The audit log, for admins."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.accounts.audit import KINDS
from hud.pages import data, query_string
from hud.pages.audit import query


def audit(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.Filters, request.GET, data_format)
    page = query.read(filters, query.PAGE_ROWS)
    if data_format:
        rows = [query.COLUMNS.row(row) for row in page.rows]
        return data.answer(data_format, "audit", rows, query.COLUMNS.names, next=page.next_before)
    context = {"page": page, "filters": filters, "kinds": KINDS, "complaints": complaints}
    return render(request, "audit/audit.html", context)
