"""Every value a visitor can send is checked: what cannot be is left out or refused."""

from __future__ import annotations

import string

import pytest
from django.http import QueryDict
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.pages import query_string
from hud.pages.charts.choice import Choice
from hud.pages.hosts.view import DrainForm, PauseForm
from hud.pages.regressions import query as regressions
from hud.pages.run.view import LogPosition
from hud.pages.runs import view as runs
from hud.pages.suite import query as suite
from hud.runs.forms import RerunForm
from hud.runs.places import Place

PLACES = [
    Place(None, "cuda", "h200", "online", same_arch=True),
    Place(None, "cpu", "cpu-x86_64", "late", same_arch=False),
]
TEXT = st.text(string.printable + "\0é�", max_size=300) | st.text(string.digits + "-.eE", max_size=30)


@pytest.mark.parametrize("kind", [suite.SuiteFilters, runs.RunFilters, Choice, LogPosition])
def test_nothing_said_means_nothing_filtered(kind: type[object]) -> None:
    assert query_string.read(kind, QueryDict()) == (kind(), [])


def test_what_cannot_be_is_left_out_and_named() -> None:
    filters, complaints = query_string.read(suite.SuiteFilters, QueryDict("mode=inference&page=many&q=a&q=b"))
    assert filters == suite.SuiteFilters(mode="inference")
    assert complaints == [
        "q: Given more than once; it takes one value.",
        "page: Enter a whole number.",
    ]


def test_the_old_name_of_a_parameter_counts_where_the_new_one_is_not_given() -> None:
    asked = {"id=3": 3, "open=4": 4, "id=3&open=4": 4, "id=3&open=": 3}
    for text, pk in asked.items():
        assert query_string.read(regressions.RegressionFilters, QueryDict(text))[0].open == pk


@pytest.mark.parametrize("kind", [suite.SuiteFilters, runs.RunFilters, Choice, LogPosition])
@settings(deadline=None)
@given(
    values=st.dictionaries(
        st.sampled_from(["mode", "q", "page", "state", "before", "metric", "points", "task", "start"]), TEXT
    )
)
def test_any_text_yields_filters(kind: type[suite.SuiteFilters], values: dict[str, str]) -> None:
    given = QueryDict(mutable=True)
    given.update(values)
    filters, _complaints = query_string.read(kind, given)
    kept = vars(filters).values()
    assert all("\0" not in value for value in kept if isinstance(value, str))
    assert all(0 <= value <= 2**53 for value in kept if isinstance(value, int))


@settings(deadline=None)
@given(place=TEXT, repeats=TEXT)
def test_any_text_in_a_rerun_is_refused_or_one_of_the_offers(place: str, repeats: str) -> None:
    form = RerunForm({"place": place, "repeats": repeats}, places=PLACES)
    if form.is_valid():
        assert form.options("olga", None).resources.host in {place.host for place in PLACES}
        assert 1 <= form.cleaned_data["repeats"] <= 20


def test_a_rerun_goes_where_it_was_offered() -> None:
    form = RerunForm({"place": "any:cpu:cpu-x86_64", "repeats": "2"}, places=PLACES)
    assert form.is_valid()
    asked = form.options("olga", None).resources
    assert (asked.host, asked.device, asked.arch) == (None, "cpu", "cpu-x86_64")
    assert dict(form.fields["place"].choices) == {  # type: ignore[attr-defined]
        "any:cuda:h200": "any host · h200",
        "any:cpu:cpu-x86_64": "any host · cpu-x86_64, late",
    }


@settings(deadline=None)
@given(minutes=TEXT, note=TEXT)
def test_any_text_in_a_pause_is_refused_or_a_time_to_come(minutes: str, note: str) -> None:
    form = PauseForm({"minutes": minutes, "note": note})
    if form.is_valid():
        assert 1 <= form.cleaned_data["minutes"] <= 43_200


def test_a_note_is_limited() -> None:
    assert DrainForm({"note": "x" * 500}).is_valid()
    assert not DrainForm({"note": "x" * 501}).is_valid()
