"""A schedule may measure a preset in place of a suite."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hud", "0034_use_of_limits")]
    operations = [
        migrations.AddField("schedule", "preset", models.CharField(blank=True, default="", max_length=60), False),
        migrations.AlterField("schedule", "suite", models.CharField(blank=True, max_length=60)),
    ]
