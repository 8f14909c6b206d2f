"""Which draw of the autotuner a process of an A/B comparison was pinned to, and what could be drawn."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0026_cards")]
    operations: ClassVar = [
        migrations.AddField("measurement", "draw", models.SmallIntegerField(null=True)),
        migrations.AddField("compilation", "draw", models.SmallIntegerField(null=True)),
        migrations.AddField(
            "compilation", "unpinned", ArrayField(models.CharField(max_length=16), null=True)
        ),
        migrations.AddField(
            "kernel", "offered", ArrayField(models.CharField(max_length=500), default=list, db_default=[])
        ),
    ]
