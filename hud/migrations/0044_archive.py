"""The manifest of the archive."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0043_runs_and_subjects")]
    operations: ClassVar = [
        migrations.CreateModel(
            "ArchivedMonth",
            [
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("month", models.DateField()),
                ("path", models.CharField(max_length=100)),
                ("versions", models.CharField(max_length=32)),
                ("digest", models.CharField(max_length=64)),
                ("points", models.IntegerField()),
                ("sampled", models.IntegerField()),
                ("size_bytes", models.BigIntegerField()),
                ("written", models.DateTimeField()),
                (
                    "stream",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="hud.stream"
                    ),
                ),
            ],
            {
                "constraints": [
                    models.UniqueConstraint(fields=("stream", "month"), name="archived_month")
                ],
            },
        ),
    ]
