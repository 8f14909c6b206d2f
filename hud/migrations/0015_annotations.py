"""People's notes beside the charts."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0014_bisects")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="Annotation",
            fields=[
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("suite", models.CharField(blank=True, max_length=60)),
                ("commit", models.CharField(blank=True, max_length=64)),
                ("at", models.DateTimeField(null=True)),
                ("text", models.CharField(max_length=300)),
                ("link", models.CharField(blank=True, max_length=300)),
                ("author", models.CharField(max_length=150)),
                ("created", models.DateTimeField(db_default=Now())),
                (
                    "experiment",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="annotations",
                        to="hud.experiment",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["suite", "-created"], name="annotation_suite")],
                "constraints": [
                    models.CheckConstraint(
                        condition=~Q(commit="") | Q(at__isnull=False), name="annotation_has_place"
                    ),
                ],
            },
        ),
    ]
