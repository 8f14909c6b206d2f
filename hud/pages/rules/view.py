"""Rules: what is there, and for operators what a change of them would do."""

from datetime import timedelta
from functools import cache
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme

from hud.judging.rules import write
from hud.judging.rules.preview import NIGHTS, Flag, Preview, newest_series, preview
from hud.judging.rules.thresholds import least_change
from hud.judging.rules.write import COLUMNS, Rule, rules_of
from hud.models import Experiment, Metric, Point, Series, Target, Threshold
from hud.pages import data
from hud.points.targets import AppliedTarget, Targets
from hud.problems import Problem
from hud.sql import fetch_models
from runner.schema.devices import is_named
from runner.schema.metrics import METRICS, is_known

MOST_UNKNOWN = 50
HEADER = """kind id metric suite case backend arch dtype size value share relative minimum judged unit
    direction note""".split()  # noqa: SIM905 - of all three


def rows() -> list[dict[str, Any]]:
    """Return all rules for JSON and CSV: 3 statements."""
    rules = [(kind, COLUMNS[kind].row(rule)) for kind in COLUMNS for rule in rules_of(kind)]
    return [dict.fromkeys(HEADER) | {"kind": kind.__name__.lower(), **row} for kind, row in rules]


def read() -> dict[str, Any]:
    """Return the rules, the `unknown` metrics of which neither the registry nor an operator says unit and
    direction, and what the fields of forms offer, by name: 5 statements."""
    count = """CASE WHEN NOT told AND direction = 'none' AND kind = 'timing'
        THEN (SELECT count(*) FROM hud_series WHERE metric_id = own.id) END"""
    # a range, as PostgreSQL reads all series to find an equal id that none has
    is_stored = (
        "WHERE EXISTS (SELECT FROM hud_series WHERE metric_id BETWEEN own.id AND own.id) ORDER BY name"
    )
    stored: list[Any] = fetch_models(Metric, is_stored, {}, computed={"count": count})
    unknown = [metric for metric in stored if metric.count and not is_known(metric.name)]
    unknown.sort(key=lambda metric: -metric.count)
    names = ("suite", "backend", "arch")
    experiments = list(Experiment.objects.values_list(*names).distinct().order_by())
    offers = {f"{name}s": sorted({row[index] for row in experiments}) for index, name in enumerate(names)}
    offers["archs"] = [arch for arch in offers["archs"] if is_named(arch)]
    offers["metrics"] = sorted({metric.title for metric in stored if metric.direction != "none"})[:500]
    offers["unknown"] = [metric.name for metric in unknown]
    return {
        "targets": rules_of(Target),
        "thresholds": rules_of(Threshold),
        "metrics": rules_of(Metric),
        "unknown": unknown[:MOST_UNKNOWN],
        "more_unknown": max(len(unknown) - MOST_UNKNOWN, 0),
        "offers": offers,
    }


def defaults() -> list[tuple[str, str]]:
    """Return the smallest changes that count where no threshold says otherwise, with their metrics."""
    by_change: dict[float, list[str]] = {}
    for info in METRICS.values():
        if info.kind == "timing" and info.role == "headline":
            by_change.setdefault(least_change(info.floor), []).append(info.name)
    return [(f"{change * 100:.3g} %", ", ".join(names)) for change, names in sorted(by_change.items())]


def preview_target(rule: Target, *, replaces: int | None) -> Preview:
    """Return the points of the last 60 nights that a target would have called missed, beside those that are
    missed without it."""
    shown, newest = newest_series(rule)
    if shown.until is None:
        return shown
    series = {row.pk: row for row in newest}
    today = Targets.read()
    rows = [row for row in today.rows if row.pk != replaces]
    then = Targets([*rows, rule])
    since = shown.until - timedelta(days=NIGHTS)
    measured = Point.objects.filter(
        series__in=series, order_time__gte=since, value__isnull=False, rerun=False
    )

    @cache
    def applied(series_id: int, *recorded: Any) -> tuple[AppliedTarget | None, ...]:
        row = series[series_id]
        return tuple(which.own(row.experiment, row.metric, *recorded) for which in (today, then))

    for point in measured.order_by("order_time", "run_id").iterator():
        row, direction = series[point.series_id], series[point.series_id].metric.direction
        is_missed, would_be = (
            own is not None and own.met_by(point.value, direction) == "missed"
            for own in applied(row.pk, point.target, point.target_arch)
        )
        flag = [Flag(row, point.run_id, point.order_time, None, point.value)] if would_be else []
        shown.add(flag, int(is_missed))
    return shown


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
        return COLUMNS[cls.model].row(rule)

    def refuse(self, error: Problem) -> None:
        field = error.at.strip("/")
        self.add_error(field if field in self.fields else None, error.detail)


class MatchingForm(RuleForm):
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
    value = forms.FloatField(
        label="Value",
        required=False,
        help_text="in the metric's unit",
        widget=forms.NumberInput(attrs={"autofocus": True}),
    )
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
        return data.answer(data_format, "rules", rows(), HEADER)
    kind, _dash, number = request.GET.get("edit", "").partition("-")
    rule = _rule(kind, number)
    kind = kind if rule else request.GET.get("kind", "metric")
    if kind not in FORMS or (not rule and "metric" not in request.GET):
        return _page(request, {})
    initial = FORMS[kind].of(rule) if rule else request.GET.dict()
    if kind != "metric":
        initial["metric"] = _title_of(initial["metric"])
    return _page(request, {kind: FORMS[kind](initial=initial, auto_id=f"{kind}_%s")}, editing=rule)


def _title_of(name: str) -> str:
    """Return the title of a metric, its name where that has none or another one has it too."""
    title: str = Metric.objects.filter(name=name).values_list("title", flat=True).first() or name
    try:
        return title if write.name_of(title) == name else name
    except Problem:
        return name


def _page(
    request: HttpRequest,
    forms: dict[str, RuleForm],
    *,
    editing: Rule | None = None,
    shown: Preview | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "page": read(),
        "forms": {kind: forms.get(kind) or form(auto_id=f"{kind}_%s") for kind, form in FORMS.items()},
        "open": next(iter(forms), ""),
        "editing": editing,
        "preview": shown,
        "nights": NIGHTS,
        "defaults": defaults(),
        "back": (request.POST or request.GET).get("back", ""),
    }
    return render(request, "rules/rules.html", context, status=status)


def save(request: HttpRequest, kind: str, pk: int | None = None) -> HttpResponse:
    """Store a rule, or show what it would have flagged."""
    if kind not in FORMS:
        raise Http404(f"no kind of rule is called {kind[:60]}")
    editing = _existing(kind, pk) if pk is not None else None
    form = FORMS[kind](request.POST, auto_id=f"{kind}_%s")
    forms: dict[str, RuleForm] = {kind: form}
    if not form.is_valid():
        return _page(request, forms, editing=editing, status=422)
    shown = None
    try:
        with transaction.atomic():
            rule = write.rule_of(form.model, form.cleaned_data, pk)
            if "preview" in request.POST:
                write.check(rule)
                if isinstance(rule, Target):
                    shown = preview_target(rule, replaces=rule.pk)
                else:
                    shown = preview(rule, replaces=editing if isinstance(editing, Threshold) else None)
                transaction.set_rollback(True)  # a metric that is new
            else:
                write.save(rule, who=request.user.get_username())
    except Problem as error:
        form.refuse(error)
        return _page(request, forms, editing=editing, status=422)
    if shown:
        return _page(request, forms, editing=editing, shown=shown)
    again = "" if kind == "target" else " What it touches is judged again in the background."
    matched = Series.objects.filter(write.touched(rule)).count()
    messages.success(request, f"Saved the {write.subject(rule)}: {matched} series.{again}")
    back = request.POST.get("back", "")
    return redirect(back if url_has_allowed_host_and_scheme(back, None) else "rules")


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
