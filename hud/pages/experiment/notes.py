"""Annotations: people's notes on a commit or a time, shown as lines in the charts."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.db import transaction
from django.db.models import Q, QuerySet

from hud.accounts import audit
from hud.models import Annotation, Experiment
from runner.formats.scalars import INVISIBLE

MOST = 200  # of one page
MOST_TEXT, MOST_LINK = 300, 300
_FIRST = datetime(2010, 1, 1, tzinfo=timezone.utc)
_is_link = URLValidator(schemes=["http", "https"])


class BadNote(ValueError):
    """The note cannot be stored; `field` is the wrong part."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class NewNote:
    """A note of an experiment, of a suite, or without either of everything, at a commit or a time."""

    text: str
    link: str = ""
    commit: str = ""
    at: datetime | None = None
    suite: str = ""
    experiment: Experiment | None = None


def add(note: NewNote, *, who: str) -> Annotation:
    """Store a note. Raise BadNote."""
    text, at = note.text.strip(), _place_of(note)
    _check_texts(note)
    with transaction.atomic():
        stored = Annotation.objects.create(
            suite=note.suite,
            experiment=note.experiment,
            commit=note.commit,
            at=at,
            text=text,
            link=note.link,
            author=who[:150],
        )
        audit.note(
            who=who,
            action="annotation.add",
            subject=f"annotation {stored.pk}",
            detail={"scope": stored.scope, "text": text},
        )
    return stored


def _check_texts(note: NewNote) -> None:
    text = note.text.strip()
    for name, value in (
        ("text", text),
        ("link", note.link),
        ("commit", note.commit),
        ("suite", note.suite),
    ):
        if any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in value):
            raise BadNote(name, "no control characters")
        if INVISIBLE.search(value):
            raise BadNote(name, "no invisible or bidirectional characters")
    if not 1 <= len(text) <= MOST_TEXT:
        raise BadNote("text", f"1 to {MOST_TEXT} characters")
    if note.link:
        try:
            _is_link(note.link)
        except ValidationError as error:
            raise BadNote("link", "an address that begins with http:// or https://") from error
        if len(note.link) > MOST_LINK:
            raise BadNote("link", f"at most {MOST_LINK} characters")


def _place_of(note: NewNote) -> datetime | None:
    """Return the time of a note, which has one or a commit. Raise BadNote."""
    if note.commit and not (note.commit.isascii() and note.commit.isalnum() and 4 <= len(note.commit) <= 64):
        raise BadNote("commit", "4 to 64 letters and digits")
    at = note.at if note.at is None or note.at.tzinfo else note.at.replace(tzinfo=timezone.utc)
    if not note.commit and at is None:
        raise BadNote("date", "a commit or a date")
    if at is not None and not _FIRST <= at <= datetime.now(timezone.utc) + timedelta(days=366):
        raise BadNote("date", "between 2010 and a year from now")
    return at


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


def to_row(note: Annotation) -> dict[str, Any]:
    """Return what the API says of a note."""
    return {
        "id": note.pk,
        "scope": note.scope,
        "suite": note.suite,
        "experiment": note.experiment_id,
        "commit": note.commit,
        "date": note.at,
        "text": note.text,
        "link": note.link,
        "author": note.author,
        "created": note.created,
    }
