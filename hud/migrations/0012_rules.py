"""Rules: targets of a suite and a backend, thresholds, and who said what an unknown metric means. Points
judged by week."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0011_points_of_histories")]
    operations: ClassVar = [
        migrations.AddField("metric", "told", models.BooleanField(db_default=False, default=False)),
        migrations.AddField(
            "target", "backend", models.CharField(blank=True, db_default="", default="", max_length=100)
        ),
        migrations.AddField(
            "target", "suite", models.CharField(blank=True, db_default="", default="", max_length=60)
        ),
        migrations.RemoveConstraint("target", "target_identity"),
        migrations.AddConstraint(
            "target",
            models.UniqueConstraint(
                fields=("metric", "suite", "case", "backend", "arch", "dtype", "size"), name="target_identity"
            ),
        ),
        migrations.CreateModel(
            "Threshold",
            [
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("metric", models.CharField(blank=True, max_length=200)),
                ("suite", models.CharField(blank=True, max_length=60)),
                ("case", models.CharField(blank=True, max_length=200)),
                ("backend", models.CharField(blank=True, max_length=100)),
                ("arch", models.CharField(blank=True, max_length=100)),
                ("relative", models.FloatField(null=True)),
                ("minimum", models.FloatField(null=True)),
                ("judged", models.BooleanField(null=True)),
                ("note", models.CharField(blank=True, max_length=300)),
            ],
        ),
        migrations.AddConstraint(
            "threshold",
            models.UniqueConstraint(
                fields=("metric", "suite", "case", "backend", "arch"), name="threshold_identity"
            ),
        ),
        migrations.CreateModel(
            "JudgedWeek",
            [
                ("week", models.DateField(primary_key=True, serialize=False)),
                ("points", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.AddIndex("regressionevent", models.Index(fields=["at"], name="regression_event_at")),
    ]
