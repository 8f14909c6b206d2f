"""API keys and the audit log."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F
from django.db.models.functions import Now

from hud.models.base import NamedRow
from hud.models.hosts import Host
from hud.models.streams import Stream


class ApiKey(NamedRow):
    """A key for programs. Only its SHA-256 is kept; `prefix` is what a page may show."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=20))
    host = models.ForeignKey(Host, models.CASCADE, null=True, related_name="keys")
    # None: a host's, or made on the command line; a person's keys go with the person
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, null=True, related_name="keys")
    # where its uploads go that name no other; NULL: it may not upload
    stream = models.ForeignKey(Stream, models.PROTECT, null=True, related_name="keys")
    created = models.DateTimeField(db_default=Now())
    expires = models.DateTimeField(null=True)
    last_used = models.DateTimeField(null=True)
    revoked = models.DateTimeField(null=True)
    calls_left = models.FloatField(default=0)  # token bucket of `hud.accounts.keys.take_call`
    calls_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class DailyUse(NamedRow):
    """The bytes that a key sent on one day (UTC): its uploads, or its host's logs and artifacts."""

    key = models.ForeignKey(ApiKey, models.CASCADE)
    day = models.DateField()
    sent_bytes = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key", "day"], name="daily_use_identity")]


class SignOn(NamedRow):
    """The account of a person at the provider of single sign-on. Names and addresses may change hands there,
    `subject` does not."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="sign_on")
    issuer = models.CharField(max_length=300)
    subject = models.CharField(max_length=255)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="sign_on_subject")]


class Audit(NamedRow):
    """One action of a person or program, such as a login or a rerun. Rows are only ever added."""

    at = models.DateTimeField(db_default=Now())
    who = models.CharField(max_length=150)
    action = models.CharField(max_length=60)
    subject = models.CharField(max_length=200)
    address = models.CharField(max_length=100, blank=True, default="")  # of the client
    detail = models.JSONField(default=dict)

    class Meta:
        indexes = [models.Index(F("at").desc(), name="audit_at")]
