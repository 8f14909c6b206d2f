"""A run keeps the fingerprints of its interpreters."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0023_points_of_runs")]
    operations: ClassVar = [
        migrations.AddField("runrequest", "fingerprints", models.JSONField(default=dict)),
    ]
