"""Forms for every value a visitor can send. An invalid one is refused with a message, never a 500.

Filter forms always yield filters: invalid values are ignored, and the page says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
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
from hud.pages.hosts.query import Place
from hud.pages.limits import query as limits
from hud.pages.option_fields import knob_field, knob_text
from hud.pages.regressions import query as regressions
from hud.pages.runs import query as runs
from hud.pages.suite import query as suite
from hud.runs.requests import MAX_REPEATS, InvalidRunRequest
from runner.schema import inductor_options
from runner.schema.inductor_options import InductorOptions
from runner.schema.plan import COMPILATIONS
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import MAX_COMPILATIONS, BadRequest, Option, OptionValue

_KNOB = "knob_"  # prefix of a field's name
_MAIN_FIELDS = ("place", "environment", "compilations", "repeats")  # of a rerun
_FIRST_KNOBS = 6  # of a suite's options that stand open: with the fields above ten
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
    sort = _word(60)
    page = forms.IntegerField(required=False, min_value=1, max_value=MAX_PAGE)

    def filters(self) -> suite.Filters:
        return suite.Filters(**self.kept())


class RegressionFilters(FilterForm):
    tab = forms.ChoiceField(required=False, choices=[(tab, tab) for tab in regressions.TABS])
    state = forms.ChoiceField(required=False, choices=[(state, state) for state in RegressionState])
    arch = _word(100)
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
    table = _choice("all")  # else the newest rows only
    branch = _word()
    axis = _choice("even", "date")
    scale = _choice("absolute", "relative", "log")
    marks = _choice("each", "medians")
    overlay = forms.RegexField(r"^\d{1,9}(,\d{1,9}){0,9}$", required=False)  # ids of experiments
    base = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)  # runs
    head = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)
    point = forms.IntegerField(required=False, min_value=1, max_value=MAX_ID)  # run whose details are open

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        for name in ("from", "to"):  # the first is no name for an attribute
            self.fields[name] = forms.DateTimeField(required=False)

    def range(self) -> Range:
        kept = self.kept()
        points = kept.get("points", experiment.DEFAULT_POINTS)
        return Range(points, kept.get("branch", ""), kept.get("from"), kept.get("to"))

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
    """Two points, as `hud.pages.code.sides` reads them, and the slot of the kernel whose code to show."""

    base = _word(300)
    head = _word(300)
    kernel = _word(16)
    q = _word()  # of the chooser


class CompareFilters(FilterForm):
    """Sides as `hud.pages.compare.sides` reads them; `head` is read apart, since it may be repeated."""

    base = _word(300)
    metric = _word()
    suite = _word(60)
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


class _OptionsField(forms.CharField):
    """Inductor options, separated by commas."""

    def __init__(self, **about: Any) -> None:
        super().__init__(max_length=1000, **about)

    def clean(self, value: Any) -> InductorOptions:
        settings = [part for part in super().clean(value).split(",") if part.strip()]
        try:
            return inductor_options.parsed(settings)
        except BadRequest as error:
            raise forms.ValidationError(str(error)) from error


class RerunForm(forms.Form):
    """The rerun form: host, repeats, environments and options of an experiment.

    Every knob of the suite has a field ``knob_NAME`` that starts at the experiment's own value.
    """

    place = forms.ChoiceField(label="Host")
    environment = forms.ChoiceField(label="Environment", required=False)
    base_environment = forms.ChoiceField(
        label="Compare with (A/B)", required=False, help_text="baseline environment"
    )
    new_options = _OptionsField(
        label="Inductor options",
        required=False,
        help_text="for the candidate only, e.g. epilogue_fusion=off, max_fusion_size=8; the baseline"
        " runs without them",
    )
    compilations = forms.IntegerField(
        label="Compilations",
        required=False,
        min_value=1,
        max_value=MAX_COMPILATIONS,
        help_text=f"processes with empty caches; default: {COMPILATIONS['cuda']} on a GPU, 1 on a CPU",
    )
    repeats = forms.IntegerField(
        label="Repeats",
        min_value=1,
        max_value=MAX_REPEATS,
        initial=1,
        help_text=f"processes over the caches of the first; at least {LEAST_PAIRS} pairs for A/B",
    )
    caches = forms.ChoiceField(
        label="Caches",
        required=False,
        choices=[("fresh", "fresh"), ("kept", "kept")],
        help_text="kept: compile once for all repeats, also in A/B",
    )
    pinned = forms.CharField(
        label="Pin choices of",
        required=False,
        max_length=60,
        help_text="a compilation whose configurations are forced, as run:12/experiment:5/compilation:2",
    )

    def __init__(
        self,
        data: Any = None,
        *,
        places: list[Place],
        knobs: Sequence[Option] = (),
        inductor: bool = False,
        compiles: bool = False,
        own: Mapping[str, OptionValue] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """Take the suite's `knobs` and the experiment's `own` values; `inductor`: its options apply;
        `compiles`: it can be compiled several times."""
        super().__init__(data, **options)
        if not inductor:
            del self.fields["new_options"]
        if not compiles:
            del self.fields["compilations"], self.fields["pinned"]
        self.places = {place.key: place for place in places}
        field = self.fields["place"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(place.key, place.label) for place in places]
        field.error_messages["invalid_choice"] = "No attached host offers this any more; choose another."
        names = list(dict.fromkeys(name for place in places for name in place.pythons))
        self._offer("environment", "host default", names)
        self._offer("base_environment", "none", names)
        self._knobs = {f"{_KNOB}{knob.name}": knob for knob in knobs}
        self._own = {f"{_KNOB}{name}" for name in own}
        field.widget.attrs["data-warn"] = ""  # the page's script shows the line of the chosen place
        for name, knob in self._knobs.items():
            self.fields[name] = knob_field(knob)
            if knob.name in own:
                self.initial.setdefault(name, knob_text(own[knob.name]))

    def _offer(self, name: str, none: str, offered: Sequence[str]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", none), *((one, one) for one in offered)]
        there = ", ".join(offered) or "none"
        field.error_messages["invalid_choice"] = f"No host has an environment %(value)s; there are: {there}."

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        is_ab = values.get("base_environment") or values.get("new_options")
        if is_ab and values.get("repeats", LEAST_PAIRS) < LEAST_PAIRS:
            self.add_error("repeats", f"An A/B comparison needs at least {LEAST_PAIRS} pairs.")
        return values

    @property
    def main_fields(self) -> list[forms.BoundField]:
        """Return what most reruns set: where and how often."""
        return [field for field in self if field.name in _MAIN_FIELDS]

    @property
    def more_fields(self) -> list[forms.BoundField]:
        """Return the settings of comparisons, caches and choices."""
        return [field for field in self if field.name not in _MAIN_FIELDS and field.name not in self._knobs]

    @property
    def more_wrong(self) -> bool:
        return any(field.errors for field in self.more_fields)

    @property
    def knob_fields(self) -> list[forms.BoundField]:
        """Return the suite's options, those that the experiment sets first."""
        found = [field for field in self if field.name in self._knobs]
        return sorted(found, key=lambda field: field.name not in self._own)

    @property
    def first_knobs(self) -> list[forms.BoundField]:
        return self.knob_fields[: max(_FIRST_KNOBS, len(self._own))]

    @property
    def other_knobs(self) -> list[forms.BoundField]:
        return self.knob_fields[max(_FIRST_KNOBS, len(self._own)) :]

    @property
    def knobs_wrong(self) -> bool:
        return any(name in self.errors for name in self._knobs)

    @property
    def others_wrong(self) -> bool:
        return any(field.errors for field in self.other_knobs)

    def knobs_chosen(self) -> dict[str, OptionValue | None]:
        """Return every knob, None for its default; {} where the form was sent without knobs."""
        if not any(name in self.data for name in self._knobs):
            return {}
        return {option.name: self.cleaned_data[name] for name, option in self._knobs.items()}

    def refuse(self, error: InvalidRunRequest) -> bool:
        """Show the reason beside the field that is wrong. Return False where there is none."""
        name = "new_options" if error.options else f"{_KNOB}{error.knob}"
        if name not in self.fields:
            return False
        self.add_error(name, str(error))
        return True

    def place_chosen(self) -> Place:
        return self.places[self.cleaned_data["place"]]


class ExplainForm(forms.Form):
    """A failed result of a run."""

    series = forms.IntegerField(min_value=1, max_value=MAX_ID)


class KeyForm(forms.Form):
    """A new key, with scopes of those that its owner has."""

    name = forms.CharField(label="Name", max_length=100, help_text="what will use it")
    scopes = forms.MultipleChoiceField(label="Scopes", widget=forms.CheckboxSelectMultiple)
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
