"""Uploads, import jobs and idempotency keys."""

import uuid

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hud.models.base import NamedRow
from hud.models.keys import ApiKey
from hud.models.streams import Stream, adhoc_id


class Upload(NamedRow):
    """One body that came through the door, with the receipt it got."""

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


class IdempotencyKey(NamedRow):
    """A client's own name for one request, and the answer it got: the same request gets it again."""

    key = models.ForeignKey(ApiKey, models.CASCADE)
    text = models.CharField(max_length=200)
    content_key = models.CharField(max_length=64)  # of the request that used it first
    receipt = models.JSONField()
    created = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key", "text"], name="idempotency_key_identity")]
