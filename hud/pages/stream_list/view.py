"""Streams: what there is, and for operators what can be done with them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from hud.corrections.background import merge
from hud.corrections.streams import StreamChanges, change, contents, delete
from hud.models import OPERATORS_OWN, Correction, Stream
from hud.pages import data
from hud.points.streams import COLUMNS, read
from hud.problems import Problem
from hud.runs import streams

_SWITCHES = {"front": {"front": True}, "archive": {"archived": True}, "open": {"archived": False}}


def _stream_field(**about: Any) -> forms.ModelChoiceField[Stream]:
    return forms.ModelChoiceField(Stream.objects.order_by("name"), to_field_name="name", **about)


class StreamForm(forms.Form):
    name = forms.CharField(label="Name", max_length=60, help_text="the old name goes on as another one")
    title = forms.CharField(label="Title", max_length=200, required=False)
    reference = _stream_field(
        required=False, empty_label="none", help_text="whose levels judge what has no level of its own yet"
    )


class DeleteForm(forms.Form):
    sure = forms.BooleanField(label="Delete")


class MergeForm(forms.Form):
    into = _stream_field(
        label="Merge into",
        empty_label="choose a stream",
        help_text="which then has all results, keys and schedules",
    )
    sure = forms.BooleanField(label="Merge")


_FORMS: dict[str, type[forms.Form]] = {"change": StreamForm, "merge": MergeForm, "delete": DeleteForm}
_FORMS |= dict.fromkeys(_SWITCHES, forms.Form)


def _form(action: str, stream: Stream, posted: Any = None) -> forms.Form:
    """Return the form of an action, which offers all other streams."""
    current = {"name": stream.name, "title": stream.title, "reference": stream.reference}
    form = _FORMS[action](posted, initial=current)
    for name, field in form.fields.items():
        if isinstance(field, forms.ModelChoiceField):
            field.queryset = Stream.objects.exclude(pk=stream.pk).order_by("name")
        elif name == "name":
            field.disabled = stream.name in OPERATORS_OWN
    return form


def stream_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    lines = read()
    if data_format:
        return data.answer_table(data_format, "streams", COLUMNS, lines)
    content: dict[str, Any] = {"lines": lines}
    changing = streams.named(request.GET.get("change", "")).select_related("reference").first()
    if changing:
        content |= {
            "changing": changing,
            "form": _form("change", changing),
            "merge_form": _form("merge", changing),
            "keeps_name": changing.name in OPERATORS_OWN,
            "contents": contents(changing),
        }
    return render(request, "streams/streams.html", content)


def act(request: HttpRequest, name: str, action: str) -> HttpResponse:
    """Change, archive, open, merge or delete a stream, or make it the front one."""
    stream, who = streams.named(name).select_related("reference").first(), request.user.get_username()
    if stream is None:
        raise Http404(f"no stream is called {name}")
    if action not in _FORMS:
        raise Http404(f"actions of a stream: {', '.join(_FORMS)}")
    form = _form(action, stream, request.POST)
    if not form.is_valid():
        for field, errors in form.errors.items():
            messages.error(request, f"{field}: {' '.join(map(str, errors))}")
        return redirect(f"{reverse('streams')}?change={stream.name}")
    try:
        done = _do(action, stream, form.cleaned_data, who)
    except Problem as error:
        messages.error(request, f"Nothing was changed: {error}.")
        if correction := error.extra.get("correction"):
            return redirect("correction", pk=correction)
    else:
        if isinstance(done, Correction):
            return redirect("correction", pk=done.pk)
        messages.success(request, done)
    return redirect("streams")


def _do(action: str, stream: Stream, fields: dict[str, Any], who: str) -> str | Correction:
    """Do it and return what was done, in words, or what goes on in the background."""
    if action == "merge":
        done = merge(stream, fields["into"], who=who)
        return done if isinstance(done, Correction) else f"Merged {stream} into {fields['into']}: {done}."
    if action == "delete":
        delete(stream, who=who)
        return f"Deleted {stream}."
    if action == "change":
        fields["reference"] = fields["reference"].name if fields["reference"] else ""
    return f"Changed {change(stream, StreamChanges(**_SWITCHES.get(action, fields)), who=who)}."
