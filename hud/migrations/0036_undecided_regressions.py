"""Say of a regression that pairs were measured and cannot tell."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hud", "0035_presets_of_schedules")]

    operations = [
        migrations.AddField(
            "regression", "undecided", models.BooleanField(db_default=False, default=False)
        ),
    ]
