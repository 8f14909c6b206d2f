"""A run says of which suites and subjects it has results."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0042_lines")]
    operations: ClassVar = [
        migrations.CreateModel(
            "RunSubject",
            [
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("suite", models.CharField(max_length=60)),
                ("arch", models.CharField(blank=True, max_length=100)),
                ("mode", models.CharField(blank=True, max_length=40)),
                ("dtype", models.CharField(blank=True, max_length=40)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subjects",
                        to="hud.run",
                    ),
                ),
                (
                    "stream",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="hud.stream",
                    ),
                ),
            ],
            {
                "indexes": [
                    models.Index(fields=["stream", "suite", "arch", "mode", "dtype"], name="stream_subject")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "suite", "arch", "mode", "dtype"), name="run_subject"
                    )
                ],
            },
        ),
        migrations.RunSQL(
            """
            INSERT INTO hud_runsubject (run_id, stream_id, suite, arch, mode, dtype)
            SELECT DISTINCT p.run_id, s.stream_id, e.suite, e.arch, e.mode, e.dtype
            FROM hud_point p JOIN hud_series s ON s.id = p.series_id
            JOIN hud_experiment e ON e.id = s.experiment_id WHERE p.status NOT IN (7, 8)
            """,
            migrations.RunSQL.noop,
        ),
    ]
