"""Webhooks, the outbox of regressions, deliveries, and overdue periods that were told."""

from __future__ import annotations

import uuid
from typing import ClassVar

import django.db.models.deletion
from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models.functions import Now

_ID = ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0012_rules")]
    operations: ClassVar = [
        migrations.CreateModel(
            "Webhook",
            [
                _ID,
                ("name", models.CharField(max_length=100, unique=True)),
                ("url", models.URLField(max_length=500)),
                ("secret", models.CharField(blank=True, max_length=300)),
                (
                    "format",
                    models.CharField(
                        choices=[("standard", "standard"), ("slack", "slack"), ("github", "github")],
                        default="standard",
                        max_length=10,
                    ),
                ),
                ("events", ArrayField(models.CharField(max_length=20))),
                ("active", models.BooleanField(default=True)),
                ("created", models.DateTimeField(db_default=Now())),
                ("last_at", models.DateTimeField(null=True)),
                ("last_ok", models.BooleanField(null=True)),
                ("last_result", models.CharField(blank=True, max_length=300)),
            ],
        ),
        migrations.CreateModel(
            "Notice",
            [
                _ID,
                (
                    "regression",
                    models.ForeignKey("hud.regression", django.db.models.deletion.CASCADE, related_name="+"),
                ),
                ("state", models.CharField(max_length=12)),
                ("note", models.CharField(blank=True, max_length=1000)),
                ("who", models.CharField(blank=True, max_length=150)),
                ("created", models.DateTimeField(db_default=Now(), db_index=True)),
            ],
        ),
        migrations.CreateModel(
            "Delivery",
            [
                _ID,
                (
                    "webhook",
                    models.ForeignKey(
                        "hud.webhook", django.db.models.deletion.CASCADE, related_name="deliveries"
                    ),
                ),
                ("message_id", models.UUIDField(default=uuid.uuid4)),
                ("event", models.CharField(max_length=30)),
                ("data", models.JSONField()),
                ("created", models.DateTimeField(db_default=Now())),
                ("attempts", models.IntegerField(default=0)),
                ("due", models.DateTimeField(db_default=Now())),
                ("delivered", models.DateTimeField(null=True)),
                ("given_up", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(delivered=None, given_up=None),
                        fields=["due"],
                        name="delivery_waiting",
                    ),
                    models.Index(fields=["created"], name="delivery_created"),
                ]
            },
        ),
        migrations.CreateModel(
            "OverdueSuite",
            [
                _ID,
                ("suite", models.CharField(max_length=60)),
                ("branch", models.CharField(max_length=200)),
                ("arch", models.CharField(max_length=100)),
                ("since", models.DateTimeField()),
            ],
        ),
        migrations.AddConstraint(
            "overduesuite",
            models.UniqueConstraint(fields=("suite", "branch", "arch", "since"), name="overdue_once"),
        ),
    ]
