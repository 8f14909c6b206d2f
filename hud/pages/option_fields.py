"""A form field for each knob of a suite, with its bounds. Empty means the suite's default."""

from __future__ import annotations

from typing import Any

from django import forms

from runner.schema.options import Option, OptionValue


def knob_field(knob: Option) -> forms.Field:
    """Return a field whose value is valid for the knob, or None where nothing was chosen."""
    default = "" if knob.default is None else f"default: {_word(knob.default)}"
    about: dict[str, Any] = {"label": knob.name, "help_text": knob.help, "required": False}
    if knob.kind == "int":
        about["help_text"] = "; ".join(filter(None, (knob.help, f"{knob.low} to {knob.high}", default)))
        return forms.IntegerField(min_value=knob.low, max_value=knob.high, **about)
    if knob.kind == "ints":
        return _Integers(knob, **about)
    if knob.kind == "word":
        return _Word(knob, **about)
    values = {"bool": (True, False), "choice": knob.choices}[knob.kind]
    words = [(_word(value), _word(value)) for value in values]
    return forms.TypedChoiceField(
        choices=[("", default or "default"), *words],
        coerce=lambda text: {_word(value): value for value in values}[text],
        empty_value=None,
        **about,
    )


def knob_text(value: OptionValue) -> str:
    """Return a value as its field shows it."""
    return "+".join(map(str, value)) if isinstance(value, list) else _word(value)


def _word(value: OptionValue | None) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


class _Word(forms.CharField):
    def __init__(self, option: Option, **about: Any) -> None:
        super().__init__(max_length=100, empty_value="", **about)
        self._option = option

    def clean(self, value: Any) -> str | None:
        text: str = super().clean(value)
        if text and (problem := self._option.problem(text)):
            raise forms.ValidationError(problem)
        return text or None


class _Integers(forms.CharField):
    """Integers joined by + as on the command line."""

    def __init__(self, option: Option, **about: Any) -> None:
        about["help_text"] = f"{option.help}; {option.low} to {option.high}, several joined by +"
        super().__init__(max_length=200, **about)
        self._option = option

    def clean(self, value: Any) -> list[int] | None:
        text = super().clean(value)
        if not text:
            return None
        parts = text.replace(" ", "").split("+")
        if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
            raise forms.ValidationError("Integers, joined by +.")
        numbers = [int(part) for part in parts]
        problem = self._option.problem(numbers)
        if problem:
            raise forms.ValidationError(problem)
        return numbers
