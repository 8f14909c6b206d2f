"""Webhooks, and what waits to be delivered to them.

`Notice` is the outbox: a row is written in the transaction of the event it tells of. The deliverer groups
notices into messages, and keeps one `Delivery` for each webhook until the receiver has answered.
"""

import uuid
from enum import StrEnum

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hud.models.base import NamedRow
from hud.models.regressions import Regression


class WebhookFormat(StrEnum):
    STANDARD = "standard"  # https://www.standardwebhooks.com
    SLACK = "slack"
    GITHUB = "github"  # a comment on an issue or pull request


class Webhook(NamedRow):
    """An address that is told of regressions."""

    name = models.CharField(max_length=100, unique=True)
    url = models.URLField(max_length=500)
    secret = models.CharField(max_length=300, blank=True)  # signs standard messages; of GitHub the token
    format = models.CharField(
        max_length=10, choices=[(one.value, one.value) for one in WebhookFormat], default="standard"
    )
    events = ArrayField(models.CharField(max_length=20))  # of hud.notifications.messages.EVENTS
    active = models.BooleanField(default=True)
    created = models.DateTimeField(db_default=Now())
    last_at = models.DateTimeField(null=True)  # of the latest attempt
    last_ok = models.BooleanField(null=True)
    last_result = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return self.name


class Notice(NamedRow):
    """A change of a regression's state that webhooks are to be told of."""

    regression = models.ForeignKey(Regression, models.CASCADE, related_name="+")
    state = models.CharField(max_length=12)  # the new one
    note = models.CharField(max_length=1000, blank=True)
    who = models.CharField(max_length=150, blank=True)  # '' the judge
    created = models.DateTimeField(db_default=Now(), db_index=True)


class Delivery(NamedRow):
    """A message for one webhook."""

    webhook = models.ForeignKey(Webhook, models.CASCADE, related_name="deliveries")
    message_id = models.UUIDField(default=uuid.uuid4)  # the same in every attempt
    event = models.CharField(max_length=30)
    data = models.JSONField()
    created = models.DateTimeField(db_default=Now())
    attempts = models.IntegerField(default=0)
    due = models.DateTimeField(db_default=Now())  # of the next attempt
    delivered = models.DateTimeField(null=True)
    given_up = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["due"], condition=Q(delivered=None, given_up=None), name="delivery_waiting"),
            models.Index(fields=["created"], name="delivery_created"),
        ]


class OverdueSuite(NamedRow):
    """A period without results that webhooks were told of."""

    stream = models.CharField(max_length=60, db_default="")
    suite = models.CharField(max_length=60)
    branch = models.CharField(max_length=200)
    arch = models.CharField(max_length=100)
    since = models.DateTimeField()  # of the latest result

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["stream", "suite", "branch", "arch", "since"], name="overdue_once"
            )
        ]
