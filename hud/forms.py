"""Every value a visitor can send, checked. Nonsense is refused with words; it never becomes a 500.

A form of filters always yields filters: what cannot be is left out, and the page says so.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone

from hud.models import State
from hud.queries import experiment, runs, suite
from hud.queries.hosts import Place
from hud.runs import MAX_REPEATS

_MAX_ID = 2**31 - 1
_MAX_PAGE = 10_000
MAX_PAUSE_MINUTES = 30 * 24 * 60


def _word(max_length: int = 200) -> forms.CharField:
    return forms.CharField(required=False, max_length=max_length)


class FilterForm(forms.Form):
    """Of a page's query string. `kept` holds the values that can be."""

    def kept(self) -> dict[str, Any]:
        self.is_valid()
        return {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}

    def complaints(self) -> list[str]:
        """One sentence for each value that was left out."""
        return [f"{name}: {' '.join(map(str, errors))}" for name, errors in self.errors.items()]


class SuiteFilters(FilterForm):
    mode = _word(40)
    dtype = _word(40)
    backend = _word(100)
    arch = _word(100)
    q = _word()
    page = forms.IntegerField(required=False, min_value=1, max_value=_MAX_PAGE)

    def filters(self) -> suite.Filters:
        return suite.Filters(**self.kept())


class ExperimentChoice(FilterForm):
    """Which metric of an experiment, and how many points of it."""

    metric = _word()
    points = forms.IntegerField(required=False, min_value=1, max_value=experiment.MAX_POINTS)
    table = forms.ChoiceField(required=False, choices=[("all", "all")])  # else the newest rows only

    def wishes(self) -> dict[str, Any]:
        """What the query needs to know; the table is the page's own matter."""
        return {name: value for name, value in self.kept().items() if name != "table"}


class RunFilters(FilterForm):
    state = forms.ChoiceField(required=False, choices=[(state.value, state.value) for state in State])
    kind = forms.ChoiceField(required=False, choices=[("rerun", "rerun"), ("upload", "upload")])
    host = _word(100)
    q = _word()
    before = forms.IntegerField(required=False, min_value=1, max_value=_MAX_ID)

    def filters(self) -> runs.Filters:
        return runs.Filters(**self.kept())


class LogPosition(FilterForm):
    task = forms.IntegerField(required=False, min_value=0, max_value=_MAX_ID)
    start = forms.IntegerField(required=False, min_value=0, max_value=2**53)


class RerunForm(forms.Form):
    """Where an experiment is run again, and how often. `place` is one of the places that were offered."""

    place = forms.ChoiceField(label="Where")
    repeats = forms.IntegerField(
        label="Repeats",
        min_value=1,
        max_value=MAX_REPEATS,
        initial=1,
        help_text="fresh processes, one after the other",
    )

    def __init__(self, data: Any = None, *, places: list[Place], **options: Any) -> None:
        super().__init__(data, **options)
        self.places = {place.key: place for place in places}
        field = self.fields["place"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(place.key, place.label) for place in places]
        field.error_messages["invalid_choice"] = "No attached host offers this any more; choose another one."

    def place_chosen(self) -> Place:
        """Of a valid form."""
        return self.places[self.cleaned_data["place"]]


class PauseForm(forms.Form):
    minutes = forms.IntegerField(min_value=1, max_value=MAX_PAUSE_MINUTES)
    note = forms.CharField(required=False, max_length=500)

    def until(self) -> datetime:
        """Of a valid form: when the host goes on."""
        return timezone.now() + timedelta(minutes=self.cleaned_data["minutes"])


class DrainForm(forms.Form):
    note = forms.CharField(required=False, max_length=500)
