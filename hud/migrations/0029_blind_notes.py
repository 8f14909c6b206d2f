"""Which notes of torch's internals a compilation could not take."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("hud", "0028_measurements_in_points")]
    operations: ClassVar = [migrations.AddField("compilation", "blind", models.JSONField(null=True))]
