"""Annotations: people's notes on a commit or a time, shown as lines in the charts."""

from datetime import datetime, timedelta, timezone
from typing import Any

from django import forms
from django.core.validators import URLValidator
from django.db import transaction
from django.db.models import Q, QuerySet

from hud.accounts import audit
from hud.models import Annotation, Experiment
from hud.tables.table import DataTable

COLUMNS = DataTable("id=pk experiment=experiment_id date=at scope suite commit text link author created")
MOST = 200  # of one page
_FIRST = datetime(2010, 1, 1, tzinfo=timezone.utc)
_is_link = URLValidator(schemes=["http", "https"], message="an address that begins with http:// or https://")


class NoteForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable when it runs
    """A note at a commit or a date: of a suite, of the experiment of its `instance`, or of everything."""

    commit = forms.RegexField(
        r"^[0-9A-Za-z]{4,64}$", required=False, error_messages={"invalid": "4 to 64 letters and digits"}
    )
    link = forms.CharField(required=False, max_length=300, validators=[_is_link])
    date = forms.DateTimeField(required=False)

    class Meta:
        model = Annotation
        fields = ("text", "link", "commit", "suite")

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        date = self.instance.at = cleaned.get("date")
        for name in ("text", "suite"):
            cleaned[name] = " ".join(cleaned.get(name, "").split())
            if not cleaned[name].isprintable():
                self.add_error(name, "no control, invisible or bidirectional characters")
        if date is None and not cleaned.get("commit") and not self.errors:
            self.add_error("date", "a commit or a date")
        if date is not None and not _FIRST <= date <= datetime.now(timezone.utc) + timedelta(days=366):
            self.add_error("date", "between 2010 and a year from now")
        return cleaned

    def store(self, who: str) -> None:
        """Store a valid note, with an audit line."""
        note = self.instance
        note.author = who[:150]
        with transaction.atomic():
            note.save()
            detail = {"scope": note.scope, "text": note.text}
            audit.note(who=who, action="annotation.add", subject=f"annotation {note.pk}", detail=detail)


def delete(note: Annotation, *, who: str) -> None:
    with transaction.atomic():
        detail = {"scope": note.scope, "text": note.text, "author": note.author}
        audit.note(who=who, action="annotation.delete", subject=f"annotation {note.pk}", detail=detail)
        note.delete()


def of_experiment(experiment: Experiment) -> QuerySet[Annotation]:
    """Return the notes that concern an experiment, the newest first: its own, its suite's, and those of
    everything."""
    general = Q(experiment=None, suite__in=("", experiment.suite))
    return Annotation.objects.filter(general | Q(experiment=experiment)).order_by("-created", "-pk")
