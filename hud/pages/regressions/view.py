"""The regressions: what waits for somebody, and the decisions of people."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme

from hud.accounts.access import scopes_of
from hud.judging.bisect import work
from hud.judging.regressions import events
from hud.judging.regressions.groups import of_cause
from hud.judging.regressions.read import MOST_ROWS
from hud.models import Bisect, Regression
from hud.notifications.messages import of_cause as message_of
from hud.notifications.texts import markdown
from hud.pages import data, query_string, streams
from hud.pages.charts import drawing
from hud.pages.charts.drawing import Canvas
from hud.pages.charts.lines import lines_of
from hud.pages.regressions import query, table
from hud.pages.regressions.detail import Detail
from hud.points.sides import BadSide
from hud.problems import Problem
from hud.states.bisect import BisectState, most_steps
from hud.states.regressions import BY_PEOPLE

_MUTE_DAYS = 14


class RegressionAction(forms.Form):
    event = forms.ChoiceField(
        choices=[(name, name) for name in (*BY_PEOPLE, "mute", "unmute", "mine", "unassign")]
    )
    note = forms.CharField(required=False, max_length=1000)
    until = forms.DateField(required=False)  # of `mute`
    days = forms.IntegerField(required=False, min_value=1, max_value=365)  # instead of it
    ids = forms.CharField(required=False)

    def clean_ids(self) -> list[int]:
        """Return the ids of a selection. A box stands for one regression, or for all of a group."""
        given = self.data.getlist("ids") if isinstance(self.data, QueryDict) else []
        return sorted(set(query_string.ids_of(" ".join(given).split())))[:MOST_ROWS]


def regression_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    filters, complaints = query_string.read(query.RegressionFilters, request.GET, data_format)
    user = request.user if isinstance(request.user, User) else None
    own = query.stream_of(filters.open) if filters.open else None
    stream = streams.enter(request, own) if own else streams.of_request(request)
    try:
        page = query.read(stream, filters, user)
    except BadSide as error:
        if data_format:
            return error.response()
        complaints.append(str(error))
        filters = replace(filters, base="", head="")
        page = query.read(stream, filters, user)
    if data_format:
        about: dict[str, Any] = {"counts": page.counts.to_json()}
        if page.detail:
            about["detail"] = page.detail.to_json()
        return data.answer(data_format, "regressions", page.to_rows(), query.HEADER, **about)
    if filters.open and not page.detail:
        complaints.append(f"open: there is no regression {filters.open}")
    page.may_decide = "accept" in scopes_of(request)
    page.others = query_string.without(request.GET, "stream", "open", "id")
    offered = {
        "arch": page.archs if len(page.archs) > 1 or filters.arch else [],
        "suite": page.suites if len(page.suites) > 1 or filters.suite else [],
        "owner": page.owners,
    }
    context = {
        "page": page,
        "form": query_string.filter_form(filters, offered=offered, hidden={"stream": stream.name}),
        "filters": filters,
        "tabs": query.TABS if user else [tab for tab in query.TABS if tab != "mine"],
        "most": MOST_ROWS,
        "causes_html": table.causes_html(page, filters.tab),
        "complaints": complaints,
        "query_of_counts": filters.query(stream),
    }
    if page.detail:
        context |= _detail_context(page, page.detail)
    return render(request, f"regressions/regression{'' if page.detail else 's'}.html", context)


def _detail_context(page: query.RegressionsPage, detail: Detail) -> dict[str, Any]:
    """Return what only the page of one regression draws."""
    bisect, shown = detail.bisect, detail.kernels
    steps = list(bisect.steps.order_by("pk")) if bisect else []
    context: dict[str, Any] = {
        "styles": ["css/code.css", "css/experiment.css", "css/regressions.css"],
        "markdown": markdown(detail.regression.state, message_of(detail.cause)),
        "change": table.change_html(detail.regression),
        "steps": steps,
        "members_html": table.members_html(detail.cause, page),
        "commits_html": table.COMMITS.html(detail.shown_commits, None, css="blocks"),
        "kernels_html": table.KERNELS.html(shown.rows, shown, css="blocks attribution") if shown else "",
        "pairs_html": table.ANSWERS.html(detail.pairs, None, css="blocks"),
        "pairs_run": detail.regression.concluded_run_id or detail.regression.pairs_run_id,
    }
    if bisect:
        steps_html = table.STEPS.html(steps, bisect)
        context |= {"steps_html": steps_html, "usual_steps": most_steps(len(bisect.builds))}
    if detail.charts:
        canvas = Canvas(detail.charts.slots, detail.choice)
        canvas.events = lines_of(detail.charts, [], canvas)
        drawn = [drawing.chart(row, canvas, tall=not at) for at, row in enumerate(detail.charts.rows)]
        context |= {
            "charts": list(zip(detail.charts.rows, drawn, strict=True)),
            "heads": drawing.heads(canvas),
            "axis": drawing.axis(canvas),
        }
    return context


def act(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    """Apply a person's decision to the cause of a regression, or to those of a selection. Show them again,
    and say which of them the decision does not fit."""
    back = reverse("regressions") if pk is None else f"{reverse('regressions')}?open={pk}"
    asked = request.POST.get("back", "")
    if url_has_allowed_host_and_scheme(asked, None) and asked.startswith(f"{reverse('regressions')}?"):
        back = asked
    form = RegressionAction(request.POST)
    if not form.is_valid():
        messages.error(request, " ".join(text for texts in form.errors.values() for text in map(str, texts)))
        return redirect(back)
    decision = form.cleaned_data
    if pk is not None:
        decision["ids"] = [get_object_or_404(Regression, pk=pk).pk]
    until = timezone.now() + timedelta(days=decision["days"] or _MUTE_DAYS)
    if decision["until"]:  # the end of that day
        until = datetime.combine(decision["until"], time(23, 59), UTC)
    chosen = Regression.objects.filter(pk__in=decision["ids"]).select_related("series").order_by("pk")
    _decide_each(request, chosen, decision["event"], decision["note"], until)
    return redirect(back)


def bisect(request: HttpRequest, pk: int) -> HttpResponse:
    """Start a bisect of a regression, or cancel the one that runs, and show the regression again."""
    regression = get_object_or_404(Regression, pk=pk)
    who = request.user.get_username()
    if request.POST.get("event") == "cancel":
        for running in Bisect.objects.filter(regression=regression, state=BisectState.RUNNING):
            work.cancel(bisect=running, who=who)
    else:
        try:
            work.start(regression=regression, who=who, may_run_code="code" in scopes_of(request))
        except Problem as error:
            text = str(error)
            messages.error(request, f"{text[:1].upper()}{text[1:]}.")
    return redirect(f"{reverse('regressions')}?open={pk}")


def _decide_each(
    request: HttpRequest, chosen: Iterable[Regression], event: str, note: str, until: datetime
) -> None:
    decided, causes, refused = set[int](), 0, Counter[str]()
    for regression in chosen:
        if regression.pk not in decided:
            decided.add(regression.pk)
            try:
                decided |= _decide(request, regression, event, note, until)
                causes += 1
            except Problem as error:
                refused[str(error)] += 1
    if causes:
        count = f"{causes} cause{'s' if causes > 1 else ''}, {len(decided)} series"
        messages.success(request, f"{event.capitalize()}: {count}.")
    elif not refused:
        messages.warning(request, "Nothing is selected.")
    for text, times in refused.items():
        messages.error(request, f"{text[:1].upper()}{text[1:]}." + (f" ({times})" if times > 1 else ""))


def _decide(request: HttpRequest, regression: Regression, event: str, note: str, until: datetime) -> set[int]:
    user = request.user
    assert isinstance(user, User)
    who = user.get_username()
    if event in {"mine", "unassign"}:
        with transaction.atomic():
            cause = of_cause(regression).select_related("series__experiment").order_by("pk")
            members = list(cause.select_for_update(of=("self",)))
            for member in members:
                events.assign(regression=member, owner=user if event == "mine" else None, who=who)
        return {member.pk for member in members}
    end = until if event == "mute" else None
    return events.decide(regression, "mute" if event == "unmute" else event, who=who, note=note, until=end)
