"""Rules: what is there, and for operators what a change of them would do."""

from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from hud.judging.rules import write
from hud.judging.rules.preview import NIGHTS, SHOWN, Preview, preview
from hud.judging.rules.write import InvalidRule, Rule
from hud.models import Metric, Target, Threshold
from hud.pages import data
from hud.pages.rules import query

_JUDGED = {"yes": True, "no": False}


def _text(
    label: str, most: int, *, help_text: str = "", offers: str = "", needed: bool = False
) -> forms.CharField:
    widget = forms.TextInput(attrs={"list": offers} if offers else {})
    return forms.CharField(label=label, max_length=most, required=needed, help_text=help_text, widget=widget)


class RuleForm(forms.Form):
    """A form for one kind of rule: `of` returns the rule that the form describes, `refuse` shows a fault in
    it."""

    model: ClassVar[type[Any]]

    @classmethod
    def of(cls, rule: Any) -> dict[str, Any]:
        return query.COLUMNS[cls.model].row(rule)

    def refuse(self, error: InvalidRule) -> None:
        self.add_error(error.field if error.field in self.fields else None, str(error))


class MatchingForm(RuleForm):
    """What a rule matches."""

    metric = _text("Metric", 200, offers="metrics")
    suite = _text("Suite", 60, offers="suites")
    case = _text("Case", 200)
    backend = _text("Backend", 100, offers="backends")
    arch = _text("Arch", 100, offers="archs")


class TargetForm(MatchingForm):
    model = Target
    metric = _text("Metric", 200, offers="metrics", needed=True)
    dtype = _text("Dtype", 40)
    size = _text("Size", 40, help_text="the case parameter D")
    value = forms.FloatField(label="Value", required=False, help_text="in the metric's unit")
    share = forms.FloatField(
        label="Or share of the ceiling",
        required=False,
        help_text="0.55 of the arch's measured copy bandwidth",
    )
    note = _text("Note", 300)


class ThresholdForm(MatchingForm):
    model = Threshold
    relative = forms.FloatField(
        label="Smallest change, %",
        required=False,
        help_text="of the level, for timings; counts take the absolute one",
    )
    minimum = forms.FloatField(
        label="Smallest change, absolute", required=False, help_text="in the metric's unit"
    )
    judged = forms.TypedChoiceField(
        label="Judged",
        required=False,
        coerce=_JUDGED.__getitem__,
        empty_value=None,
        choices=[("", "by the role of its metric"), ("yes", "yes: opens regressions"), ("no", "no")],
    )
    note = _text("Note", 300)

    def clean_relative(self) -> float | None:
        percent: float | None = self.cleaned_data["relative"]
        return None if percent is None else percent / 100

    @classmethod
    def of(cls, rule: Any) -> dict[str, Any]:
        judged = next((word for word, value in _JUDGED.items() if value is rule.judged), "")
        relative = None if rule.relative is None else float(f"{rule.relative * 100:.12g}")
        return {**super().of(rule), "relative": relative, "judged": judged}


class MetricForm(RuleForm):
    model = Metric
    metric = _text("Metric", 200, offers="unknown", needed=True)
    unit = _text("Unit", 40, help_text="as on the pages: ms, GB/s, x; empty for none")
    direction = forms.ChoiceField(
        label="Direction",
        choices=[("down", "lower is better"), ("up", "higher is better"), ("none", "neither")],
    )


FORMS: dict[str, type[RuleForm]] = {"target": TargetForm, "threshold": ThresholdForm, "metric": MetricForm}


def rule_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    if data_format:
        return data.answer(data_format, "rules", query.rows(), query.HEADER)
    kind, _dash, number = request.GET.get("edit", "").partition("-")
    if rule := _rule(kind, number):
        form = FORMS[kind](initial=FORMS[kind].of(rule), auto_id=f"{kind}_%s")
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
    context = {
        "page": query.read(),
        "forms": {kind: given.get(kind) or form(auto_id=f"{kind}_%s") for kind, form in FORMS.items()},
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
    editing = _existing(kind, pk) if pk is not None else None
    form = FORMS[kind](request.POST, auto_id=f"{kind}_%s")
    given: dict[str, RuleForm] = {kind: form}
    if not form.is_valid():
        return _page(request, given, editing=editing, status=422)
    found = None
    try:
        with transaction.atomic():
            rule = write.rule_of(form.model, form.cleaned_data, pk)
            if "preview" in request.POST:
                write.check(rule)
                if isinstance(rule, Target):
                    found = query.preview_target(rule, replaces=rule.pk)
                else:
                    found = preview(rule, replaces=editing if isinstance(editing, Threshold) else None)
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
    rule = _existing(kind, pk)
    words = write.subject(rule)
    write.delete(rule, who=request.user.get_username())
    messages.success(request, f"Deleted the {words}.")
    return redirect("rules")


def _rule(kind: str, number: str) -> Rule | None:
    rules: list[Any] = write.rules_of(FORMS[kind].model) if kind in FORMS else []
    return next((rule for rule in rules if str(rule.pk) == number), None)


def _existing(kind: str, pk: int) -> Rule:
    rule = _rule(kind, str(pk))
    if rule is None:
        raise Http404("this rule is gone")
    return rule
