"""Forms for every value a visitor can send. An invalid one is refused with a message, never a 500.

Filter forms always yield filters: invalid values are ignored, and the page says so.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.http import QueryDict

from hud.accounts.roles import SCOPES
from hud.judging.regressions.states import BY_PEOPLE, RegressionState
from hud.models import State
from hud.pages.audit import query as audit
from hud.pages.compare import query as compare
from hud.pages.experiment import query as experiment
from hud.pages.experiment.drawing import Look
from hud.pages.experiment.history import Range
from hud.pages.limits import query as limits
from hud.pages.regressions import query as regressions
from hud.pages.regressions.tabs import TABS
from hud.pages.runs import query as runs
from hud.pages.suite import query as suite

MAX_ID = 2**31 - 1
MAX_PAGE = 10_000
MAX_PAUSE_MINUTES = 30 * 24 * 60


def _word(max_length: int = 200) -> forms.CharField:
    return forms.CharField(required=False, max_length=max_length)


def _choice(*names: str) -> forms.ChoiceField:
    return forms.ChoiceField(required=False, choices=[(name, name) for name in names])


class FilterForm(forms.Form):
    """A page's query string. `kept` returns the valid values."""

    def clean(self) -> dict[str, Any]:
        """Refuse a name that is given twice."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if isinstance(self.data, QueryDict):
            for name in self.fields:
                if len(self.data.getlist(name)) > 1:
                    self.add_error(name, "Given more than once; it takes one value.")
        return values

    def kept(self) -> dict[str, Any]:
        self.is_valid()
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}

    def complaints(self) -> list[str]:
        """Return one message for each ignored value."""
        return [f"{name}: {' '.join(map(str, errors))}" for name, errors in self.errors.items()]


class SuiteFilters(FilterForm):
    mode = _word(40)
    dtype = _word(40)
    backend = _word(100)
    arch = _word(100)
    q = _word()
    verdict = _choice("improved", "unchanged", "regressed", "inconclusive", "failed", "new")
    status = _choice("ok", "failed", "not_run")
    target = _choice("met", "missed")
    expectation = _choice("unexpected")
    sort = _word(60)
    page = forms.IntegerField(required=False, min_value=1, max_value=MAX_PAGE)

    def filters(self) -> suite.Filters:
        return suite.Filters(**self.kept())


class RegressionFilters(FilterForm):
    tab = forms.ChoiceField(required=False, choices=[(tab, tab) for tab in TABS])
    state = forms.ChoiceField(required=False, choices=[(state, state) for state in RegressionState])
    arch = _word(100)
    mode = _word(40)
    dtype = _word(40)
    base = _word(210)
    head = _word(210)
    suite = _word(60)
    branch = _word(200)
    owner = _word(150)
    open = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)
    id = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)  # the old name of `open`

    def filters(self) -> regressions.Filters:
        kept = self.kept()
        old = kept.pop("id", None)
        return regressions.Filters(**{"open": old, **kept})


class RegressionAction(forms.Form):
    """A person's decision on a regression."""

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
        texts = " ".join(given).split()
        if not all(
            text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MAX_ID for text in texts
        ):
            raise forms.ValidationError("A selection is made of ids.")
        return sorted({int(text) for text in texts})[: regressions.MOST_ROWS]


class ExperimentChoice(FilterForm):
    """What an experiment's page shows: metric, points, how charts are drawn, and what is compared."""

    metric = _word()
    points = forms.IntegerField(required=False, min_value=1, max_value=experiment.MAX_POINTS)
    table = _choice("all")  # longer parts of the table of points
    before = _word(60)  # time and run of the first point that is not in its part
    branch = _word()
    axis = _choice("even", "date")
    scale = _choice("absolute", "relative", "log")
    marks = _choice("each", "medians")
    overlay = forms.RegexField(r"^\d{1,9}(,\d{1,9}){0,9}$", required=False)  # ids of experiments
    base = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)  # runs
    head = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)
    point = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)  # run whose details are open
    options = _choice("all")  # of a rerun; else those that most need

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        for name in ("from", "to"):  # the first is no name for an attribute
            self.fields[name] = forms.DateTimeField(required=False)

    def clean_before(self) -> tuple[datetime, int] | None:
        time, _line, run = self.cleaned_data["before"].partition("_")
        if not time:
            return None
        try:
            place = datetime.fromtimestamp(int(time) / 1e6, UTC), int(run)
        except (ValueError, OverflowError, OSError) as error:
            raise forms.ValidationError("No part of the table of points begins here.") from error
        if not 0 < place[1] <= MAX_ID:
            raise forms.ValidationError("No part of the table of points begins here.")
        return place

    def range(self) -> Range:
        kept = self.kept()
        points = kept.get("points", experiment.DEFAULT_POINTS)
        return Range(points, kept.get("branch", ""), kept.get("from"), kept.get("to"), kept.get("before"))

    def rows(self) -> int:
        """Return how many points the table shows."""
        return experiment.PART_ROWS if self.kept().keys() & {"table", "before"} else experiment.TABLE_ROWS

    def query_options(self) -> dict[str, Any]:
        kept = self.kept()
        overlay = [int(one) for one in kept.get("overlay", "").split(",") if one]
        return {
            "overlay": overlay,
            **{name: kept[name] for name in ("metric", "base", "head") if name in kept},
        }

    def look(self) -> Look:
        kept = self.kept()
        return Look(**{name: kept[name] for name in ("axis", "scale", "marks") if name in kept})


class CodeSides(FilterForm):
    """Two points, as `hud.points.sides` reads them, and the slot of the kernel whose code to show."""

    base = _word(300)
    head = _word(300)
    kernel = _word(16)
    q = _word()  # of the chooser


class CompareFilters(FilterForm):
    """Sides as `hud.points.sides` reads them; `head` is read apart, since it may be repeated."""

    base = _word(300)
    metric = _word()
    suite = _word(60)
    arch = _word(100)
    mode = _word(40)
    dtype = _word(40)
    verdict = forms.ChoiceField(required=False, choices=[(word, word) for word in compare.VERDICTS])
    formulas = forms.ChoiceField(required=False, choices=[("hud", "hud")])
    rows = forms.ChoiceField(required=False, choices=[("all", "all")])


class SearchWords(FilterForm):
    q = _word()


class LimitsFilters(FilterForm):
    arch = _word(100)
    mode = _word(40)
    dtype = _word(40)
    backend = _word(100)
    suite = _word(60)

    def filters(self) -> limits.Filters:
        return limits.Filters(**self.kept())


class RunFilters(FilterForm):
    state = forms.ChoiceField(required=False, choices=[(state.value, state.value) for state in State])
    kind = forms.ChoiceField(required=False, choices=list(runs.KINDS.items()))
    branch = _word()
    suite = _word(60)
    commit = _word(130)
    host = _word(100)
    q = _word()
    stream = _word(60)
    before = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)

    def filters(self) -> runs.Filters:
        return runs.Filters(**self.kept())


class AuditFilters(FilterForm):
    who = _word(150)
    action = _word(60)
    subject = _word()
    before = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        for name in ("from", "to"):  # the first is no name for an attribute
            self.fields[name] = forms.DateField(required=False)

    def filters(self) -> audit.Filters:
        kept = self.kept()
        days = {"since": kept.pop("from", None), "until": kept.pop("to", None)}
        return audit.Filters(**kept, **days)


class LogPosition(FilterForm):
    task = forms.IntegerField(required=False, min_value=0, max_value=MAX_ID)
    start = forms.IntegerField(required=False, min_value=0, max_value=2**53)
    line = forms.IntegerField(required=False, min_value=1, max_value=2**31)  # that the page begins before
    whole = _choice("1")  # all at once


class ExplainForm(forms.Form):
    """A failed result of a run."""

    series = forms.IntegerField(min_value=1, max_value=MAX_ID)


class KeyForm(forms.Form):
    """A new key, with scopes of those that its owner has."""

    name = forms.CharField(label="Name", max_length=100, help_text="what will use it")
    scopes = forms.MultipleChoiceField(label="Scopes", widget=forms.CheckboxSelectMultiple)
    stream = forms.CharField(
        label="Stream", max_length=60, required=False, help_text="of its uploads; default: one of its name"
    )
    days = forms.TypedChoiceField(
        label="Expires",
        coerce=int,
        empty_value=None,
        required=False,
        choices=[("30", "in 30 days"), ("90", "in 90 days"), ("365", "in a year"), ("", "never")],
        initial="90",
    )

    def __init__(self, data: Any = None, *, scopes: Collection[str]) -> None:
        super().__init__(data)
        field = self.fields["scopes"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(scope, meaning) for scope, meaning in SCOPES.items() if scope in scopes]


class DrainForm(forms.Form):
    note = forms.CharField(required=False, max_length=500)


class PauseForm(DrainForm):
    minutes = forms.IntegerField(min_value=1, max_value=MAX_PAUSE_MINUTES)


class DetachForm(forms.Form):
    sure = forms.BooleanField()
