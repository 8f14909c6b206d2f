"""The uploads of a run by their receipts; overdue suites by stream. Points say how many were judged."""

from __future__ import annotations

from typing import ClassVar

import django.contrib.postgres.indexes
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0020_backlog")]
    operations: ClassVar = [
        migrations.AddIndex(
            "upload",
            django.contrib.postgres.indexes.GinIndex(
                fields=["receipt"], name="upload_receipt", opclasses=["jsonb_path_ops"]
            ),
        ),
        migrations.AddField("overduesuite", "stream", models.CharField(db_default="", max_length=60)),
        migrations.RemoveConstraint("overduesuite", "overdue_once"),
        migrations.AddConstraint(
            "overduesuite",
            models.UniqueConstraint(
                fields=("stream", "suite", "branch", "arch", "since"), name="overdue_once"
            ),
        ),
        migrations.DeleteModel("JudgedWeek"),
    ]
