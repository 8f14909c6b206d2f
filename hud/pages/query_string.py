"""A page's query string, declared once: a frozen dataclass whose fields say which values a visitor may send,
and how the form of the page's filters shows them.

An invalid value is ignored, and the page says so; data are refused with a 400. Never a 500.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from datetime import date
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator
from django.http import QueryDict
from django.utils.safestring import SafeString

from hud.problems import Problem
from hud.tables.html import attributes, link, options, text
from runner.formats.errors import Fault

MAX_ID = 2**31 - 1
MAX_PAGE = 10_000
_HAS_NEXT = MaxValueValidator(date(9998, 12, 31))  # a day after it
T = TypeVar("T")


def parameter(
    form_field: forms.Field, default: Any = None, *, names: tuple[str, ...] = (), **shown: Any
) -> Any:
    """Return a dataclass's field that `form_field` checks; `names` in the address, where not its own, the
    present one first. `shown` is for `filter_form`: `is_hidden`; or the `label`, with `blank`, the choice of
    any (None without one), for those with choices, and for others attributes of the input."""
    return field(default=default, metadata={"form_field": form_field, "names": names, **shown})


def words(most: int = 200, **shown: Any) -> Any:
    return parameter(forms.CharField(required=False, max_length=most), "", **shown)


class SeveralTexts(forms.Field):
    """A field that takes each of the values of a name."""

    def clean(self, value: Sequence[str]) -> tuple[str, ...]:
        texts = dict.fromkeys(text for text in value if text)
        if any(len(text) > 200 or "\0" in text for text in texts) or len(texts) > 500:
            raise ValidationError("At most 500 names of up to 200 characters.")
        return tuple(texts)


def several(**shown: Any) -> Any:
    return parameter(SeveralTexts(), (), **shown)


def one_of(*values: str, default: str = "", **shown: Any) -> Any:
    choices = [(value, value) for value in values]
    return parameter(forms.ChoiceField(required=False, choices=choices), default, **shown)


def number(most: int = MAX_ID, *, least: int = 1, default: int | None = None, **about: Any) -> Any:
    return parameter(forms.IntegerField(required=False, min_value=least, max_value=most), default, **about)


def day(**about: Any) -> Any:
    return parameter(forms.DateField(required=False, validators=[_HAS_NEXT]), type="date", **about)


# The condition of `named` on a text called words
NAMED = "(words ILIKE ALL(%(with)s::text[]) AND NOT words ILIKE ANY(%(without)s::text[]))"
# Options of an experiment as D=1024,size=tiny: JSON doubles a backslash
OPTIONS = r"""replace(replace(replace(knobs::text, '\\', '\'), '": ', '='), '"', '')"""


def named(text: str) -> dict[str, list[str]]:
    """Return the parameters of a filter on words that must all occur; -word must not."""
    patterns: dict[str, list[str]] = {"with": [], "without": []}
    for word in text.split()[:8]:
        excluded = word.startswith("-") and len(word) > 1
        plain = word[excluded:].strip('"').replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        patterns["without" if excluded else "with"].append(f"%{plain}%")
    return patterns


def read(kind: type[T], query: QueryDict, data_format: str = "") -> tuple[T, list[str]]:
    """Return what a query string asks for, and a message for each ignored value. Raise Problem 400 for data
    if there is any."""
    values, faults = {}, []
    for part in fields(kind):  # type: ignore[arg-type]  # a dataclass
        about: Mapping[str, Any] = part.metadata
        names = about["names"] or (part.name,)
        if query.keys().isdisjoint(names):
            continue
        name = next((name for name in names if query.get(name)), names[0])
        value, texts = None, []
        takes_several = isinstance(about["form_field"], SeveralTexts)
        try:
            value = about["form_field"].clean(query.getlist(name) if takes_several else query.get(name))
        except ValidationError as error:
            texts = error.messages
        if len(query.getlist(name)) > 1 and not takes_several:
            texts = ["Given more than once; it takes one value."]
        if texts:
            faults.append(Fault(f"/{name}", " ".join(texts)))
        elif value not in (None, "", ()):
            values[part.name] = value
    if faults and data_format:
        raise Problem(400, "invalid query string", errors=faults)
    return kind(**values), [f"{fault.pointer[1:]}: {fault.detail}" for fault in faults]


def without(query: QueryDict, *names: str) -> str:
    """Return a query without some names, after an ``&``, for the links of a table that set these."""
    rest = query.copy()
    for name in names:
        rest.pop(name, None)
    return f"&{rest.urlencode()}" if rest else ""


_NO_ATTRIBUTES = {"form_field", "names", "label"}
Choices = Sequence[str | tuple[str, str]]  # values, some with a text of their own


def filter_form(
    filters: Any,
    *,
    offered: Mapping[str, Choices] | None = None,
    suggested: Mapping[str, Sequence[str]] | None = None,
    hidden: Mapping[str, str] | None = None,
    clear: str = "",
    button: str = "Filter",
) -> SafeString:
    """Return the form of a page's filters: a field for each that has a label, to choose from what is
    `offered`, or to write, perhaps what is `suggested`. A filter with nothing offered is left out. `hidden`
    are further parameters; `clear` is the address without filters."""
    parts = [_hidden(name, value) for name, value in (hidden or {}).items()]
    for part in fields(filters):
        name, value = (part.metadata["names"] or (part.name,))[0], getattr(filters, part.name)
        if part.metadata.get("is_hidden"):
            parts += [_hidden(name, value)] if value else []
        elif "label" not in part.metadata:
            continue
        elif offered is None or part.name not in offered:
            parts.append(_input(part, name, value, (suggested or {}).get(part.name, ())))
        elif choices := offered[part.name]:
            blank = part.metadata.get("blank", "any")
            any_choice = [] if blank is None else [("", blank)]
            parts.append(select(part.metadata["label"], name, value, [*any_choice, *choices]))
    parts.append(f"<button>{button}</button>{link(clear, 'Clear') if clear else ''}")
    return SafeString(
        f'<form class="filters" method="get" role="search" data-filters>{" ".join(parts)}</form>'
    )


def none_matches(clear: str, what: str = "Nothing") -> SafeString:
    """Return what a page says in place of a table whose filters leave no row."""
    return SafeString(f"{what} matches these filters. {link(clear, 'Clear')}")


def _hidden(name: str, value: object) -> str:
    return f'<input type="hidden" name="{name}" value="{text(value)}">'


def select(label: str, name: str, value: str, choices: Choices) -> SafeString:
    pairs = ((choice, choice) if isinstance(choice, str) else choice for choice in choices)
    return SafeString(f'<label>{label} <select name="{name}">{options(pairs, value)}</select></label>')


def _input(part: Field[Any], name: str, value: object, suggested: Sequence[str]) -> str:
    checks = part.metadata["form_field"]
    known = f"{name}-suggested" if suggested else ""
    more = {key: text for key, text in part.metadata.items() if key not in _NO_ATTRIBUTES}
    value = "" if value is None else str(value)
    longest = str(getattr(checks, "max_length", ""))
    attrs = attributes(**more, name=name, value=value, maxlength=longest, list=known)
    suggestions = options(((choice, "") for choice in suggested), "")
    choices = f'<datalist id="{known}">{suggestions}</datalist>' if known else ""
    return f"<label>{part.metadata['label']} <input{attrs}></label>{choices}"
