"""The forms of rules. Each makes the row that it describes; what is left empty matches anything."""

from __future__ import annotations

from typing import Any

from django import forms

from hud.judging.rules.write import InvalidRule, Rule, metric_of
from hud.models import Metric, Target, Threshold

_JUDGED = {"": None, "yes": True, "no": False}


def _text(
    label: str, most: int, *, help_text: str = "", offers: str = "", needed: bool = False
) -> forms.CharField:
    widget = forms.TextInput(attrs={"list": offers} if offers else {})
    return forms.CharField(label=label, max_length=most, required=needed, help_text=help_text, widget=widget)


class RuleForm(forms.Form):
    """What the forms have in common: `row` returns the rule, `refuse` shows what is wrong with it."""

    def row(self, pk: int | None) -> Rule:
        raise NotImplementedError

    def refuse(self, error: InvalidRule) -> None:
        self.add_error(error.field if error.field in self.fields else None, str(error))


class TargetForm(RuleForm):
    metric = _text("Metric", 200, offers="metrics", needed=True)
    suite = _text("Suite", 60, offers="suites")
    case = _text("Case", 200)
    backend = _text("Backend", 100, offers="backends")
    arch = _text("Arch", 100, offers="archs")
    dtype = _text("Dtype", 40)
    size = _text("Size", 40, help_text="the case parameter D")
    value = forms.FloatField(label="Value", required=False, help_text="in the metric's unit")
    share = forms.FloatField(
        label="Or share of the ceiling",
        required=False,
        help_text="0.55 of the arch's measured copy bandwidth",
    )
    note = _text("Note", 300)

    def row(self, pk: int | None) -> Target:
        said = dict(self.cleaned_data)
        metric, share = metric_of(said.pop("metric")), said.pop("share")
        return Target(pk=pk, metric=metric, fraction=share, **said)

    @classmethod
    def of(cls, rule: Target) -> dict[str, Any]:
        return {**_values(rule, cls), "metric": rule.metric.name, "share": rule.fraction}


class ThresholdForm(RuleForm):
    metric = _text("Metric", 200, offers="metrics")
    suite = _text("Suite", 60, offers="suites")
    case = _text("Case", 200)
    backend = _text("Backend", 100, offers="backends")
    arch = _text("Arch", 100, offers="archs")
    relative = forms.FloatField(
        label="Smallest change, %",
        required=False,
        help_text="of the level, for timings; counts take the absolute one",
    )
    minimum = forms.FloatField(
        label="Smallest change, absolute", required=False, help_text="in the metric's unit"
    )
    judged = forms.ChoiceField(
        label="Judged",
        required=False,
        choices=[("", "by the role of its metric"), ("yes", "yes: opens regressions"), ("no", "no")],
    )
    note = _text("Note", 300)

    def row(self, pk: int | None) -> Threshold:
        said = dict(self.cleaned_data)
        relative, judged = said.pop("relative"), _JUDGED[said.pop("judged")]
        share = None if relative is None else relative / 100
        return Threshold(pk=pk, relative=share, judged=judged, **said)

    @classmethod
    def of(cls, rule: Threshold) -> dict[str, Any]:
        judged = next(word for word, value in _JUDGED.items() if value is rule.judged)
        relative = None if rule.relative is None else float(f"{rule.relative * 100:.12g}")
        return {**_values(rule, cls), "relative": relative, "judged": judged}


class MetricForm(RuleForm):
    metric = _text("Metric", 200, offers="unknown", needed=True)
    unit = _text("Unit", 40, help_text="as on the pages: ms, GB/s, x; empty for none")
    direction = forms.ChoiceField(
        label="Direction",
        choices=[("down", "lower is better"), ("up", "higher is better"), ("none", "neither")],
    )

    def row(self, pk: int | None) -> Metric:
        metric = metric_of(self.cleaned_data["metric"])
        if pk not in {None, metric.pk}:
            raise InvalidRule("metric", "the name of a metric stays; add another one")
        metric.unit, metric.direction = self.cleaned_data["unit"], self.cleaned_data["direction"]
        return metric

    @classmethod
    def of(cls, rule: Metric) -> dict[str, Any]:
        return {"metric": rule.name, "unit": rule.unit, "direction": rule.direction}


FORMS: dict[str, type[TargetForm | ThresholdForm | MetricForm]] = {
    "target": TargetForm,
    "threshold": ThresholdForm,
    "metric": MetricForm,
}
KINDS: dict[str, type[Target | Threshold | Metric]] = {
    "target": Target,
    "threshold": Threshold,
    "metric": Metric,
}


def _values(rule: Rule, form: type[RuleForm]) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in form.base_fields if hasattr(rule, name)}
