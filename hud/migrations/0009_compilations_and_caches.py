"""How often a schedule compiles, and the caches of a run and of each of its tasks.

So far every task had fresh caches, and an A/B comparison kept those of each side.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0008_compilations")]
    operations: ClassVar = [
        migrations.AddField(
            "schedule", "compilations", models.PositiveSmallIntegerField(null=True, blank=True)
        ),
        migrations.AddField(
            "runrequest", "caches", models.CharField(max_length=6, db_default="fresh", default="fresh")
        ),
        migrations.AddField("runrequest", "pinned", models.JSONField(default=dict)),
        migrations.AddField(
            "task", "caches", models.CharField(max_length=6, db_default="fresh", default="fresh")
        ),
    ]
