"""The audit log, for admins."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from hud.accounts.audit import KINDS
from hud.pages import data
from hud.pages.audit import query
from hud.pages.forms import AuditFilters


@require_safe
def audit(request: HttpRequest, data_format: str = "") -> HttpResponse:
    form = AuditFilters(request.GET)
    if data_format and (refusal := data.refusal(form)):
        return refusal
    filters = form.filters()
    page = query.read(filters, query.PAGE_ROWS)
    if data_format:
        return data.answer(
            data_format, "audit", [query.to_row(row) for row in page.rows], next=page.next_before
        )
    context = {"page": page, "filters": filters, "kinds": KINDS, "complaints": form.complaints()}
    return render(request, "audit/audit.html", context)
