"""Renamed names: what comes in under the old one lands under the new one."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0018_into_streams")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="Alias",
            fields=[
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("kind", models.CharField(max_length=10)),
                ("suite", models.CharField(blank=True, max_length=60)),
                ("old", models.CharField(max_length=200)),
                ("new", models.CharField(max_length=200)),
                ("who", models.CharField(max_length=150)),
                ("at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=["kind", "suite", "old"], name="alias_identity"),
                ],
            },
        ),
    ]
