"""Refuse a correction that would interfere with one that waits or is under way in the background."""

from django.db.models import Q

from hud.models import Correction
from hud.problems import Problem


def check_none(which: Q) -> None:
    """Raise Problem 409 that names the correction of these that waits or is under way. The caller holds a
    lock under which such corrections are made."""
    if row := Correction.objects.filter(which, finished=None).order_by("pk").first():
        words = (
            f"{row.subject} waits or is under way as correction {row.pk}: cancel it, or wait until it ends"
        )
        raise Problem(409, words, correction=row.pk)
