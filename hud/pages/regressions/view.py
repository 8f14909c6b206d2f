"""The regressions: what waits for somebody, and the decisions of people."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from hud.accounts.access import after_login
from hud.judging.bisect import work
from hud.judging.bisect.search import BisectState
from hud.judging.regressions import decide
from hud.judging.regressions.states import Event
from hud.models import Bisect, Regression
from hud.pages import data
from hud.pages.forms import RegressionAction, RegressionFilters
from hud.pages.regressions import query

_MUTE_DAYS = 14


@require_safe
def regression_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    form = RegressionFilters(request.GET)
    if data_format and (refusal := data.refusal(form)):
        return refusal
    filters = form.filters()
    user = request.user if isinstance(request.user, User) else None
    page = query.read(filters, user)
    if data_format:
        return data.answer(data_format, "regressions", page.to_rows(), counts=page.counts)
    context = {"page": page, "filters": filters, "most": query.MOST_ROWS, "complaints": form.complaints()}
    return render(request, "regressions/regressions.html", context)


@require_POST
@after_login(lambda _request, pk: f"{reverse('regressions')}?id={pk}")
def act(request: HttpRequest, pk: int) -> HttpResponse:
    """Apply a person's decision, and show the regression again."""
    regression = get_object_or_404(Regression.objects.select_related("series__experiment"), pk=pk)
    form = RegressionAction(request.POST)
    if not form.is_valid():
        messages.error(request, " ".join(text for texts in form.errors.values() for text in map(str, texts)))
    else:
        try:
            _decide(request, regression, **form.cleaned_data)
        except decide.CannotDo as error:
            messages.error(request, f"{str(error).capitalize()}.")
    return redirect(f"{reverse('regressions')}?id={pk}")


@require_POST
@after_login(lambda _request, pk: f"{reverse('regressions')}?id={pk}")
def bisect(request: HttpRequest, pk: int) -> HttpResponse:
    """Start a bisect of a regression, or cancel the one that runs, and show the regression again."""
    regression = get_object_or_404(Regression, pk=pk)
    who = request.user.get_username()
    if request.POST.get("event") == "cancel":
        for running in Bisect.objects.filter(regression=regression, state=BisectState.RUNNING):
            work.cancel(bisect=running, who=who)
    else:
        try:
            work.start(regression=regression, who=who)
        except work.CannotBisect as error:
            messages.error(request, f"{str(error).capitalize()}.")
    return redirect(f"{reverse('regressions')}?id={pk}")


def _decide(request: HttpRequest, regression: Regression, event: str, note: str, days: int | None) -> None:
    user = request.user
    assert isinstance(user, User)
    who = user.get_username()
    if event in {"mute", "unmute"}:
        until = timezone.now() + timedelta(days=days or _MUTE_DAYS) if event == "mute" else None
        decide.mute(regression=regression, who=who, until=until, note=note)
    elif event in {"mine", "unassign"}:
        decide.assign(regression=regression, owner=user if event == "mine" else None, who=who)
    else:
        decide.act(regression=regression, event=Event(event), who=who, note=note)
