"""Streams: what there is, and for operators what can be done with them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from hud.accounts.access import after_login
from hud.ingest.streams import CannotChangeStream, StreamChanges, change, delete, merge
from hud.models import OPERATORS_OWN, Stream
from hud.pages import data
from hud.pages.stream_list import query
from hud.runs import streams
from hud.runs.references import Busy
from hud.runs.streams import BadStreamName

_back_to_streams = after_login(lambda _request, **_kwargs: reverse("streams"))
_SWITCHES = {  # by the action of a button
    "front": StreamChanges(front=True),
    "archive": StreamChanges(archived=True),
    "open": StreamChanges(archived=False),
}


class StreamForm(forms.Form):
    """The settings of a stream."""

    name = forms.CharField(label="Name", max_length=60, help_text="the old name goes on as another one")
    title = forms.CharField(label="Title", max_length=200, required=False)
    reference = forms.ChoiceField(
        label="Reference", required=False, help_text="whose levels judge what has no level of its own yet"
    )

    def __init__(self, stream: Stream, posted: Any = None) -> None:
        reference = stream.reference.name if stream.reference else ""
        super().__init__(posted, initial={"name": stream.name, "title": stream.title, "reference": reference})
        self.fields["name"].disabled = stream.name in OPERATORS_OWN
        _set_choices(self, "reference", stream, "none")


class MergeForm(forms.Form):
    into = forms.ChoiceField(label="Merge into", help_text="which then has all results, keys and schedules")
    sure = forms.BooleanField(label="Merge")

    def __init__(self, stream: Stream, posted: Any = None) -> None:
        super().__init__(posted)
        _set_choices(self, "into", stream, "choose a stream")


class DeleteForm(forms.Form):
    sure = forms.BooleanField(label="Delete")

    def __init__(self, _stream: Stream, posted: Any = None) -> None:
        super().__init__(posted)


_FORMS: dict[str, type[StreamForm | MergeForm | DeleteForm]] = {
    "change": StreamForm,
    "merge": MergeForm,
    "delete": DeleteForm,
}


def _set_choices(form: forms.Form, name: str, stream: Stream, empty: str) -> None:
    """Offer the names of all other streams."""
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)
    others = Stream.objects.exclude(pk=stream.pk).order_by("name").values_list("name", flat=True)
    field.choices = [("", empty), *((other, other) for other in others)]


@require_safe
def stream_list(request: HttpRequest, data_format: str = "") -> HttpResponse:
    lines = query.read()
    if data_format:
        return data.answer(data_format, "streams", [line.to_row() for line in lines])
    content: dict[str, Any] = {"lines": lines}
    changing = streams.named(request.GET.get("change", "")).select_related("reference").first()
    if changing:
        content |= {"changing": changing, "form": StreamForm(changing), "merge_form": MergeForm(changing)}
        content["keeps_name"] = changing.name in OPERATORS_OWN
    return render(request, "streams/streams.html", content)


@require_POST
@_back_to_streams
def act(request: HttpRequest, name: str, action: str) -> HttpResponse:
    """Change, archive, open, merge or delete a stream, or make it the front one."""
    stream, who = streams.named(name).select_related("reference").first(), request.user.get_username()
    if stream is None:
        raise Http404(f"no stream is called {name}")
    if action not in _FORMS and action not in _SWITCHES:
        raise Http404(f"actions of a stream: {', '.join([*_FORMS, *_SWITCHES])}")
    form = _FORMS[action](stream, request.POST) if action in _FORMS else None
    if form is not None and not form.is_valid():
        for field, errors in form.errors.items():
            messages.error(request, f"{field}: {' '.join(map(str, errors))}")
        return redirect(f"{reverse('streams')}?change={stream.name}")
    try:
        done = _do(action, stream, form, who)
    except BadStreamName as error:
        messages.error(request, f"name: {error.faults[0].detail}")
    except (CannotChangeStream, Busy) as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, done)
    return redirect("streams")


def _do(action: str, stream: Stream, form: forms.Form | None, who: str) -> str:
    """Do it and return what was done, in words."""
    if form is None:
        return f"Changed {change(stream, _SWITCHES[action], who=who)}."
    if action == "merge":
        into = streams.named(form.cleaned_data["into"]).get()
        return f"Merged {stream} into {into}: {merge(stream, into, who=who)}."
    if action == "delete":
        delete(stream, who=who)
        return f"Deleted {stream}."
    return f"Changed {change(stream, StreamChanges(**form.cleaned_data), who=who)}."
