"""The judge keeps counts and the order of the points of large runs."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0044_archive")]
    operations: ClassVar = [
        migrations.CreateModel(
            "RunSummary",
            [
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="hud.run",
                    ),
                ),
                ("version", models.CharField(max_length=200)),
                ("counts", models.JSONField()),
                ("places", models.BinaryField()),
            ],
        ),
        # a page reads a part of it, which an uncompressed one has at once
        migrations.RunSQL(
            "ALTER TABLE hud_runsummary ALTER COLUMN places SET STORAGE EXTERNAL", migrations.RunSQL.noop
        ),
    ]
