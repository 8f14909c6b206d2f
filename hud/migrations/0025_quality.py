"""A measurement says why it may not decide."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0024_fingerprints")]
    operations: ClassVar = [
        migrations.AddField("measurement", "quality", models.CharField(max_length=20, null=True)),
    ]
