"""The words that pages use, which their tooltips explain too."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.tables.html import TERMS


def glossary(request: HttpRequest) -> HttpResponse:
    return render(request, "glossary/glossary.html", {"terms": TERMS.items()})
