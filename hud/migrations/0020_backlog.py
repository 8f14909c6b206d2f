"""How far the judge has come with what waits for a verdict."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0019_alias")]
    operations: ClassVar = [
        migrations.CreateModel(
            "Backlog",
            [
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("began", models.DateTimeField()),
                ("at", models.DateTimeField()),
                ("judged", models.BigIntegerField(default=0)),
            ],
        ),
    ]
