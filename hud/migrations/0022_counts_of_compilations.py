"""A point says how many samples each of its compilations has. `points --rebuild` fills it for earlier ones."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0021_receipts_of_runs")]
    operations: ClassVar = [
        migrations.AddField("point", "counts", ArrayField(models.IntegerField(), null=True)),
        migrations.AddField("sidepoint", "counts", ArrayField(models.IntegerField(), null=True)),
    ]
