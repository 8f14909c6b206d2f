"""A field for each knob of the catalogue, bounded as the knob is. Empty means the suite's own value."""

from __future__ import annotations

from typing import Any

from django import forms

from runner.schema.suite import Option, OptionValue


def knob_field(option: Option) -> forms.Field:
    """Its value is what the catalogue takes, or None where nothing was chosen."""
    said = f", {_word(option.default)}" if option.default is not None else ""
    about: dict[str, Any] = {"label": option.name, "help_text": option.help, "required": False}
    if option.kind == "int":
        about["help_text"] = f"{option.help}; {option.low} to {option.high}{said}"
        return forms.IntegerField(min_value=option.low, max_value=option.high, **about)
    if option.kind == "ints":
        return _Integers(option, **about)
    if option.kind == "word":
        return _Word(option, **about)
    values = {"bool": (True, False), "choice": option.choices}[option.kind]
    words = [(_word(value), _word(value)) for value in values]
    return forms.TypedChoiceField(
        choices=[("", f"its own{said}"), *words],
        coerce=lambda text: {_word(value): value for value in values}[text],
        empty_value=None,
        **about,
    )


def knob_text(value: OptionValue) -> str:
    """A value as its field shows it."""
    return "+".join(map(str, value)) if isinstance(value, list) else _word(value)


def _word(value: OptionValue | None) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


class _Word(forms.CharField):
    """A name."""

    def __init__(self, option: Option, **about: Any) -> None:
        super().__init__(max_length=100, empty_value="", **about)
        self._option = option

    def clean(self, value: Any) -> str | None:
        text: str = super().clean(value)
        if text and (problem := self._option.problem(text)):
            raise forms.ValidationError(problem)
        return text or None


class _Integers(forms.CharField):
    """Several integers, joined by + as on the command line."""

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
