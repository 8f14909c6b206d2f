"""Streams: the lines of results that belong together because somebody measures them for one purpose."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hud.models.base import NamedRow

NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,59}"
NIGHTLY, SAMPLES, IMPORT, ADHOC = "nightly", "samples", "import", "adhoc"
OPERATORS_OWN = (NIGHTLY, SAMPLES, IMPORT, ADHOC)  # made by the migrations; only operators write to them


class Stream(NamedRow):
    """A line of results, such as `nightly` or `laptop`. Every run has exactly one."""

    name = models.CharField(max_length=60, unique=True)
    # earlier names, and those of merged streams
    aliases = ArrayField(models.CharField(max_length=60), default=list, blank=True)
    title = models.CharField(max_length=200, blank=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="streams"
    )
    # that named it first, where the key has no owner
    key = models.ForeignKey("hud.ApiKey", models.SET_NULL, null=True, blank=True, related_name="+")
    # whose levels judge a series until it has one of its own
    reference = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="+")
    is_front = models.BooleanField(default=False)  # an operator chose it as what `/` shows
    # had three complete ones, as the judge found; what was, need not be counted at every address
    has_nights = models.BooleanField(default=False, db_default=False)
    archived = models.DateTimeField(null=True, blank=True)  # takes no more results, and is in no picker
    created = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["is_front"], condition=Q(is_front=True), name="one_front_stream"),
            models.CheckConstraint(condition=Q(name__regex=f"^{NAME_PATTERN}$"), name="stream_name"),
        ]

    def __str__(self) -> str:
        return self.name


def adhoc() -> Stream:
    """Return the stream of what names no other."""
    return Stream.objects.get_or_create(name=ADHOC)[0]


def adhoc_id() -> int:
    return adhoc().pk
