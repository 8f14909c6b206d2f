"""The forms of a rerun and of a new run: where, how often, over which caches, and the suite's options."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from django import forms
from django.http import HttpRequest

from hud.models import Stream
from hud.runs.matching import ResourceRequest
from hud.runs.places import Place
from hud.runs.requests import MAX_REPEATS, RunOptions
from runner.schema.compilations import InductorOptions, parsed_inductor_options
from runner.schema.draws import LEAST_DRAWS, MAX_DRAWS, ChoiceNoise, draws_to_decide, power_words
from runner.schema.options import Option, OptionValue, setting_text
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import MAX_COMPILATIONS, BadRequest, TaskSpec
from runner.schema.tasks import COMPILATIONS, Replication, Selection
from runner.suites import PRESETS, SUITES

_KNOB = "knob_"  # prefix of a field's name
_MAIN_FIELDS = ("place", "environment", "compilations", "repeats")  # what most reruns set
_FIRST_KNOBS = 6  # of a suite's options that stand open: with the fields above ten


def uid_of_form(request: HttpRequest, *part: str) -> UUID | None:
    """Return the uid of the run that a form asks for, or of a part of what it asks for: another one for each
    page that showed the form, and for each choice in it. A second click asks for the same run."""
    shown = request.POST.get("csrfmiddlewaretoken")
    said = "\n".join([request.get_full_path(), request.POST.urlencode(), *part])
    return uuid5(NAMESPACE_URL, said) if shown else None


class _OptionsField(forms.CharField):
    """Inductor options, separated by commas."""

    def clean(self, value: Any) -> InductorOptions:
        settings = [part for part in super().clean(value).split(",") if part.strip()]
        try:
            return parsed_inductor_options(settings)
        except BadRequest as error:
            raise forms.ValidationError(str(error)) from error


class _KnobField(forms.CharField):
    """A word that the suite looks up, flags, or integers joined by + as on the command line."""

    def __init__(self, knob: Option, **about: Any) -> None:
        super().__init__(max_length=200, **about)
        self._knob = knob

    def clean(self, value: Any) -> OptionValue | None:
        text: str = super().clean(value)
        chosen: Any = text
        if self._knob.kind == "ints":
            parts = text.replace(" ", "").split("+")
            chosen = [int(part) if part.isascii() and part.isdecimal() else part for part in parts]
        if text and (problem := self._knob.problem(chosen)):
            raise forms.ValidationError(problem)
        return chosen if text else None


def _knob_field(knob: Option) -> forms.Field:
    """Return a field whose value is valid for the knob, or None where nothing was chosen."""
    default = "" if knob.default is None else f"default: {_knob_text(knob.default)}"
    about: dict[str, Any] = {"label": knob.name, "help_text": knob.help, "required": False}
    if knob.kind == "int":
        about["help_text"] = "; ".join(filter(None, (knob.help, f"{knob.low} to {knob.high}", default)))
        return forms.IntegerField(min_value=knob.low, max_value=knob.high, **about)
    if knob.kind == "ints":
        about["help_text"] = f"{knob.help}; {knob.low} to {knob.high}, several joined by +"
    if knob.kind in ("ints", "word", "flags"):
        return _KnobField(knob, **about)
    values = {_knob_text(value): value for value in knob.choices or (True, False)}
    return forms.TypedChoiceField(
        choices=[("", default or "default"), *((text, text) for text in values)],
        coerce=values.__getitem__,
        empty_value=None,
        **about,
    )


def _knob_text(value: OptionValue) -> str:
    """Return a value as its field shows it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else setting_text(value)


def _power(noise: ChoiceNoise, places: Sequence[Place]) -> str:
    """Return what a comparison of the default number of draws finds, and one that decides."""
    process_s = places[0].process_s if places else None
    numbers = sorted({2 * LEAST_DRAWS, min(2 * MAX_DRAWS, draws_to_decide(noise.noise))})
    return "; ".join(power_words(noise, draws, process_s=process_s) for draws in numbers)


class RerunForm(forms.Form):
    """The rerun form: host, repeats, environments and options of an experiment.

    A knob of the suite has a field ``knob_NAME`` that starts at the experiment's own value; those that the
    experiment sets come first.
    """

    place = forms.ChoiceField(label="Host")
    environment = forms.ChoiceField(required=False)
    base_environment = forms.ChoiceField(
        label="Compare with (A/B)", required=False, help_text="baseline environment"
    )
    new_options = _OptionsField(
        label="Inductor options",
        max_length=1000,
        required=False,
        help_text="for the candidate only, e.g. epilogue_fusion=off, max_fusion_size=8; the baseline"
        " runs without them",
    )
    compilations = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_COMPILATIONS,
        help_text=f"processes with empty caches; default: {COMPILATIONS['cuda']} on a GPU, 1 on a CPU",
    )
    repeats = forms.IntegerField(
        min_value=1,
        max_value=MAX_REPEATS,
        initial=1,
        help_text="processes over the caches of the first; in A/B of both sides at each draw, or pairs",
    )
    draws = forms.IntegerField(
        required=False,
        min_value=LEAST_DRAWS,
        max_value=MAX_DRAWS,
        help_text=f"A/B at equal choices: compilations drawn on each side; default: {LEAST_DRAWS}",
    )
    caches = forms.ChoiceField(
        required=False,
        choices=[("", "default"), ("fresh", "fresh"), ("kept", "kept"), ("ledger", "proven choices")],
        help_text="kept: compile once for all repeats; proven choices: those that the host was given;"
        f" A/B: at least {LEAST_PAIRS} fresh or kept pairs in place of equal choices",
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
        spec: TaskSpec | None = None,
        whole: bool = True,
        noise: Callable[[], ChoiceNoise] | None = None,
        **options: Any,
    ) -> None:
        """Offer the options of the suite of `spec`, the experiment's task, if the runner has it. Not `whole`:
        only what most reruns set, unless more is given. `noise` reads that of a process at known choices."""
        super().__init__(data, **options)
        suite, own = (SUITES[spec.suite], spec.knobs) if spec else (None, {})
        if not (spec and suite and suite.takes_inductor_options(spec)):
            del self.fields["new_options"]
        if not (spec and suite and suite.has_compilations(spec)):
            del self.fields["compilations"], self.fields["pinned"]
        self.places = {place.key: place for place in places}
        field = self.fields["place"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(place.key, place.label) for place in places]
        field.error_messages["invalid_choice"] = "No attached host offers this any more; choose another."
        names = list(dict.fromkeys(name for place in places for name in place.pythons))
        self._offer("environment", "host default", names)
        self._offer("base_environment", "none", names)
        field.widget.attrs["data-warn"] = ""  # the page's script shows the line of the chosen place
        own_first = sorted(suite.options if suite else (), key=lambda knob: knob.name not in own)
        self._knobs = {f"{_KNOB}{knob.name}": knob for knob in own_first}
        first = max(_FIRST_KNOBS, len(own))
        given = {*self.data, *self.initial}
        self.whole = whole or not given.isdisjoint({*self.fields, *self._knobs} - {*_MAIN_FIELDS})
        if self.whole and spec and noise:
            self.fields["draws"].help_text += f"; {_power(noise(), places)}"
        self.main_fields = [field for field in self if field.name in _MAIN_FIELDS]
        self.more_fields = [field for field in self if field.name not in _MAIN_FIELDS]
        for name, knob in self._knobs.items() if self.whole else ():
            self.fields[name] = _knob_field(knob)
            if knob.name in own:
                self.initial.setdefault(name, _knob_text(own[knob.name]))
        of_knobs = [field for field in self if field.name in self._knobs]
        self.first_knobs, self.other_knobs = of_knobs[:first], of_knobs[first:]

    def _offer(self, name: str, none: str, offered: Sequence[str]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", none), *((one, one) for one in offered)]
        there = ", ".join(offered) or "none"
        field.error_messages["invalid_choice"] = f"No host has an environment %(value)s; there are: {there}."

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        is_ab = values.get("base_environment") or values.get("new_options")
        in_free_pairs = is_ab and values.get("caches")
        if in_free_pairs and values.get("repeats", LEAST_PAIRS) < LEAST_PAIRS:
            self.add_error("repeats", f"An A/B comparison needs at least {LEAST_PAIRS} pairs.")
        return values

    @property
    def more_open(self) -> bool:
        """Return whether more than the main fields is wrong, or filled in by the page that led here."""
        return self.in_pairs or any(field.errors for field in self.more_fields)

    @property
    def in_pairs(self) -> bool:
        """Return whether the form starts as an A/B comparison of two environments."""
        return bool(self["base_environment"].value())

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
        return {option.name: self.cleaned_data.get(name) for name, option in self._knobs.items()}

    def refuse(self, error: BadRequest) -> bool:
        """Show the reason beside the field that is wrong. Return False where there is none."""
        name = "new_options" if error.options else f"{_KNOB}{error.knob}"
        if name not in self.fields:
            return False
        self.add_error(name, str(error))
        return True

    def options(self, who: str, stream: Stream | None) -> RunOptions:
        """Return where and how often to run."""
        said = self.cleaned_data
        place = self.places[said["place"]]
        resources = ResourceRequest(
            place.device,
            place.host,
            place.arch,
            interpreter=said["environment"],
            base_interpreter=said["base_environment"],
        )
        return RunOptions(
            resources,
            who,
            stream=stream,
            replication=Replication(
                said.get("compilations"), said["repeats"], said["caches"] or None, draws=said["draws"]
            ),
            pinned=said.get("pinned", ""),
            candidate_options=said.get("new_options", {}),
        )


def _several(name: str) -> forms.MultipleChoiceField:
    return forms.MultipleChoiceField(required=False, label=name, widget=forms.CheckboxSelectMultiple)


class NewRunForm(RerunForm):
    """The form of a run of a suite's cases, with the fields of a rerun. What is not chosen is the suite's
    default."""

    cases, modes, dtypes, backends = map(_several, ("Cases", "Mode", "Type", "Backend"))
    preset = forms.ChoiceField(
        label="Preset", required=False, help_text="as this system's own script; what is chosen goes first"
    )
    into = forms.CharField(
        label="Stream of the results", required=False, max_length=60, help_text="default: adhoc"
    )

    def __init__(self, data: Any, *, spec: TaskSpec, **about: Any) -> None:
        """Offer what the suite of `spec`, one of its tasks, has."""
        super().__init__(data, spec=spec, **about)
        suite = SUITES[spec.suite]
        dtypes = dict.fromkeys(dtype for case in suite.cases for dtype in case.dtypes)
        offered = {
            "cases": [case.name for case in suite.cases],
            "modes": suite.modes,
            "dtypes": dtypes,
            "backends": suite.backends_on(spec.device),
        }
        presets = [
            name
            for name, preset in PRESETS.items()
            if suite.name in preset["suites"] and (len(preset["suites"]) == 1 or "cases" not in preset)
        ]
        for name, values in {**offered, "preset": ["", *presets]}.items():
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [(value, value or "none") for value in values]
        if not presets:
            del self.fields["preset"]
        self.fields.pop("pinned", None)

    def named(self, names: str) -> list[forms.BoundField]:
        return [self[name] for name in names.split() if name in self.fields]

    def selection(self, suite: str, device: str) -> Selection:
        lists = {name: self.cleaned_data[name] for name in ("cases", "modes", "dtypes", "backends")}
        knobs = {name: value for name, value in self.knobs_chosen().items() if value is not None}
        return Selection(suite, device, **lists, knobs=knobs)
