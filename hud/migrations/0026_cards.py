"""A task knows the card on which its series was last measured."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0025_quality")]
    operations: ClassVar = [
        migrations.AddField(
            "task",
            "home",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="hud.accelerator",
            ),
        ),
        migrations.AddField("task", "passed_at", models.DateTimeField(null=True)),
    ]
