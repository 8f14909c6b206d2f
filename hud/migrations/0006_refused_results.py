"""Count the results of a host that did not belong to its task."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0005_imports_judging_and_quotas")]

    operations: ClassVar = [
        migrations.AddField(
            "host",
            "refused_reason",
            models.CharField(max_length=300, blank=True, db_default=""),
        ),
        migrations.AddField("host", "refused_results", models.BigIntegerField(db_default=0)),
    ]
