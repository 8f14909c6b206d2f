"""Rules: what is there, and for operators what a change of them would do."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from hud.judging.rules import write
from hud.judging.rules.preview import NIGHTS, SHOWN, Preview, preview
from hud.judging.rules.write import InvalidRule, Rule
from hud.models import Target, Threshold
from hud.pages import data
from hud.pages.rules import query
from hud.pages.rules.forms import FORMS, KINDS, RuleForm


def rule_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        return data.answer(data_format, "rules", query.read().to_rows(), query.HEADER)
    kind, _dash, number = request.GET.get("edit", "").partition("-")
    rule = _rule(kind, int(number)) if kind in KINDS and number.isdecimal() and len(number) < 10 else None
    if rule is not None:
        said = FORMS[kind].of(rule)  # type: ignore[arg-type]  # the form of its kind
        form = FORMS[kind](initial=said, auto_id=f"{kind}_%s")
        return _page(request, {kind: form}, editing=rule)
    named = request.GET.get("metric", "")[:200]
    asked = FORMS["metric"](initial={"metric": named}, auto_id="metric_%s")
    return _page(request, {"metric": asked} if named else {})


def _page(
    request: HttpRequest,
    given: dict[str, RuleForm],
    *,
    editing: Rule | None = None,
    found: Preview | None = None,
    status: int = 200,
) -> HttpResponse:
    forms = {kind: given.get(kind) or form(auto_id=f"{kind}_%s") for kind, form in FORMS.items()}
    context = {
        "page": query.read(),
        "forms": forms,
        "open": next(iter(given), ""),
        "editing": editing,
        "preview": found,
        "nights": NIGHTS,
        "shown": SHOWN,
        "defaults": query.defaults(),
    }
    return render(request, "rules/rules.html", context, status=status)


def save(request: HttpRequest, kind: str, pk: int | None = None) -> HttpResponse:
    """Store a rule, or show what it would have flagged."""
    if kind not in FORMS:
        raise Http404(f"no kind of rule is called {kind[:60]}")
    editing = _rule(kind, pk) if pk is not None else None
    if pk is not None and editing is None:
        raise Http404("this rule is gone")
    form = FORMS[kind](request.POST, auto_id=f"{kind}_%s")
    given: dict[str, RuleForm] = {kind: form}
    if not form.is_valid():
        return _page(request, given, editing=editing, status=422)
    found = None
    try:
        with transaction.atomic():
            rule = form.row(pk)
            if "preview" in request.POST:
                write.check(rule)
                found = _preview(rule)
                transaction.set_rollback(True)  # a metric that is new
            else:
                write.save(rule, who=request.user.get_username())
    except InvalidRule as error:
        form.refuse(error)
        return _page(request, given, editing=editing, status=422)
    if found:
        return _page(request, given, editing=editing, found=found)
    again = "" if kind == "target" else " What it touches is judged again in the background."
    messages.success(request, f"Saved the {write.subject(rule)}.{again}")
    return redirect("rules")


def delete(request: HttpRequest, kind: str, pk: int) -> HttpResponse:
    rule = _rule(kind, pk)
    if rule is None:
        raise Http404("this rule is gone")
    words = write.subject(rule)
    write.delete(rule, who=request.user.get_username())
    messages.success(request, f"Deleted the {words}.")
    return redirect("rules")


def _rule(kind: str, pk: int) -> Rule | None:
    if kind not in KINDS or pk > 2**31 - 1:
        return None
    wanted: dict[str, Any] = {"pk": pk, **({"told": True} if kind == "metric" else {})}
    return KINDS[kind]._default_manager.filter(**wanted).first()


def _preview(rule: Rule) -> Preview:
    if isinstance(rule, Target):
        return query.preview_target(rule, replaces=rule.pk)
    stored = Threshold.objects.filter(pk=rule.pk).first() if isinstance(rule, Threshold) and rule.pk else None
    return preview(rule, replaces=stored)
