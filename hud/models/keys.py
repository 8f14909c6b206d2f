"""API keys, what came in with them, and the audit log."""

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from hud.models.base import NamedRow
from hud.models.hosts import Host
from hud.models.streams import Stream, adhoc_id


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

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class LimitUse(NamedRow):
    """How much of a limit of `hud.accounts.limits` a caller had used when it last did something."""

    name = models.CharField(max_length=20)
    caller = models.CharField(max_length=150)
    used = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "caller"], name="limit_use_identity")]


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


class Upload(NamedRow):
    """One body that came in, with the receipt it got."""

    stream = models.ForeignKey(Stream, models.PROTECT, default=adhoc_id, related_name="uploads")
    content_key = models.CharField(max_length=64)  # over the content and its parameters
    filename = models.CharField(max_length=500, blank=True)
    format = models.CharField(max_length=40)
    parameters = models.JSONField(default=dict)
    receipt = models.JSONField(default=dict)
    key = models.ForeignKey(ApiKey, models.SET_NULL, null=True)
    created = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["content_key", "stream"], name="upload_content_key")]
        indexes = [
            # which uploads brought results of a run
            GinIndex(fields=["receipt"], opclasses=["jsonb_path_ops"], name="upload_receipt")
        ]


class Import(NamedRow):
    """An upload too large for one request: its body waits below `HUD_DATA/imports/` and is taken in by
    `manage.py imports`. Ends as done, with its receipt, or failed, with the problem."""

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    stream = models.ForeignKey(Stream, models.PROTECT, default=adhoc_id, related_name="+")
    content_key = models.CharField(max_length=64)  # the same content waits or has failed only once
    parameters = models.JSONField(default=dict)
    key = models.ForeignKey(ApiKey, models.SET_NULL, null=True)
    address = models.CharField(max_length=100, blank=True, default="", db_default="")  # of the client
    done_records = models.IntegerField(default=0)
    attempts = models.SmallIntegerField(default=0, db_default=0)  # processes that were started for it
    started = models.DateTimeField(null=True)  # the latest of them
    receipt = models.JSONField(null=True)
    problem = models.JSONField(null=True)  # detail and errors, where it was refused
    created = models.DateTimeField(db_default=Now())
    finished = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["content_key", "stream"], condition=~Q(state="failed"), name="import_content_key"
            )
        ]


class Correction(NamedRow):
    """A deletion, renaming or merge of so much that `manage.py imports` does it in parts."""

    action = models.CharField(max_length=60)  # as in the audit log
    subject = models.CharField(max_length=200)  # likewise
    arguments = models.JSONField()
    who = models.CharField(max_length=150)
    address = models.CharField(max_length=100, blank=True)  # of the client
    done_rows = models.IntegerField(default=0)
    rows = models.IntegerField()  # points, experiments or series that it concerned when it began
    counts = models.JSONField(default=dict)  # of what it has changed
    problem = models.CharField(max_length=500, blank=True)  # that ended it
    created = models.DateTimeField(db_default=Now())
    finished = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["action", "subject"], condition=Q(finished=None), name="correction_identity"
            )
        ]

    @property
    def state(self) -> str:
        if self.problem:
            return "failed"
        if self.finished:
            return "done" if self.counts else "cancelled"
        return "running" if self.counts else "queued"

    @property
    def waits(self) -> bool:
        """Return whether it has not ended, and has changed nothing yet."""
        return not self.finished and not self.counts


class IdempotencyKey(NamedRow):
    """A client's own name for one request, and the answer it got: the same request gets it again."""

    key = models.ForeignKey(ApiKey, models.CASCADE)
    text = models.CharField(max_length=200)
    content_key = models.CharField(max_length=64)  # of the request that used it first
    receipt = models.JSONField()
    created = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key", "text"], name="idempotency_key_identity")]
