"""Store what was computed of nights, for other processes and the next start."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0046_corrections")]
    operations: ClassVar = [
        migrations.CreateModel(
            "KeptValue",
            [
                ("digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("value", models.BinaryField()),
                ("at", models.DateTimeField(db_default=Now())),
            ],
        ),
    ]
