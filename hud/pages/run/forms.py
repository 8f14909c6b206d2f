"""The query string of a run's page."""

from __future__ import annotations

from django import forms

from hud.pages.forms import MAX_PAGE, FilterForm
from hud.pages.run.results import KINDS, SORTS, ResultFilters


class ResultForm(FilterForm):
    """Which results of a run to show, and in which order."""

    show = forms.ChoiceField(required=False, choices=[(kind, kind) for kind in KINDS])
    q = forms.CharField(required=False, max_length=200)
    sort = forms.ChoiceField(required=False, choices=[(name, name) for name in SORTS if name])
    page = forms.IntegerField(required=False, min_value=1, max_value=MAX_PAGE)

    def filters(self) -> ResultFilters:
        return ResultFilters(**self.kept())
