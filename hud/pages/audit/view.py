"""The audit log, for admins."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from hud.accounts.audit import KINDS
from hud.pages import data, query_string
from hud.pages.audit import query


def audit(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.AuditFilters, request.GET, data_format)
    rows, next_before = query.read(filters, query.PAGE_ROWS)
    if data_format:
        return data.answer_table(data_format, "audit", query.ROWS, rows, next=next_before)
    clear = reverse("audit")
    others = {name: query_string.without(request.GET, name, "before") for name in query.NARROWED}
    context = {
        "form": query_string.filter_form(filters, suggested={"action": KINDS}, clear=clear),
        "table": query.ROWS.html(
            rows,
            others,
            css="readings",
            caption="Newest first, times in UTC",
            empty=query_string.none_matches(clear),
        ),
        "filters": filters,
        "next_before": next_before,
        "complaints": complaints,
    }
    return render(request, "audit/audit.html", context)
