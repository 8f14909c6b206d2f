"""A page's query string, declared once: a frozen dataclass whose fields say which values a visitor may send.

An invalid value is ignored, and the page says so; data are refused with a 400. Never a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict

from hud.problems import Problem
from runner.formats.errors import Fault

MAX_ID = 2**31 - 1
MAX_PAGE = 10_000
T = TypeVar("T")


def parameter(form_field: forms.Field, default: Any = None, *, names: tuple[str, ...] = ()) -> Any:
    """Return a dataclass's field that `form_field` checks; `names` in the address, where not its own, the
    present one first."""
    return field(default=default, metadata={"form_field": form_field, "names": names})


def words(most: int = 200) -> Any:
    return parameter(forms.CharField(required=False, max_length=most), "")


def one_of(*values: str, default: str = "") -> Any:
    return parameter(forms.ChoiceField(required=False, choices=[(one, one) for one in values]), default)


def number(most: int = MAX_ID, *, least: int = 1, default: int | None = None, **about: Any) -> Any:
    return parameter(forms.IntegerField(required=False, min_value=least, max_value=most), default, **about)


# The condition of `named` on a text called words
NAMED = "(words ILIKE ALL(%(with)s::text[]) AND NOT words ILIKE ANY(%(without)s::text[]))"


def named(text: str) -> dict[str, list[str]]:
    """Return the parameters of a filter on words that must all occur; -word must not."""
    patterns: dict[str, list[str]] = {"with": [], "without": []}
    for word in text.split()[:8]:
        excluded = word.startswith("-") and len(word) > 1
        plain = word[excluded:].strip('"').replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        patterns["without" if excluded else "with"].append(f"%{plain}%")
    return patterns


def read(kind: type[T], given: QueryDict, data_format: str = "") -> tuple[T, list[str]]:
    """Return what a query string asks for, and a message for each ignored value. Raise Problem 400 for data
    if there is any."""
    values, faults = {}, []
    for one in fields(kind):  # type: ignore[arg-type]  # a dataclass
        about: Mapping[str, Any] = one.metadata
        names = about["names"] or (one.name,)
        name = next((name for name in names if given.get(name)), names[0])
        value, texts = None, []
        try:
            value = about["form_field"].clean(given.get(name))
        except ValidationError as error:
            texts = error.messages
        if len(given.getlist(name)) > 1:
            texts = ["Given more than once; it takes one value."]
        if texts:
            faults.append(Fault(f"/{name}", " ".join(texts)))
        elif value not in (None, ""):
            values[one.name] = value
    if faults and data_format:
        raise Problem(400, "invalid query string", errors=faults)
    return kind(**values), [f"{fault.pointer[1:]}: {fault.detail}" for fault in faults]
