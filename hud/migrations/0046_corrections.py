"""Deletions and renamings of what is large are rows, done in parts."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0045_summaries")]
    operations: ClassVar = [
        migrations.CreateModel(
            "Correction",
            [
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("action", models.CharField(max_length=60)),
                ("subject", models.CharField(max_length=200)),
                ("arguments", models.JSONField()),
                ("who", models.CharField(max_length=150)),
                ("address", models.CharField(blank=True, max_length=100)),
                ("done_rows", models.IntegerField(default=0)),
                ("rows", models.IntegerField()),
                ("counts", models.JSONField(default=dict)),
                ("problem", models.CharField(blank=True, max_length=500)),
                ("created", models.DateTimeField(db_default=Now())),
                ("finished", models.DateTimeField(null=True)),
            ],
            {
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("finished", None)),
                        fields=("action", "subject"),
                        name="correction_identity",
                    )
                ],
            },
        ),
    ]
