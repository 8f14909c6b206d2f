"""Say of a regression that pairs were measured and cannot tell."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hud", "0034_use_of_limits")]

    operations = [
        migrations.AddField(
            "regression", "undecided", models.BooleanField(db_default=False, default=False)
        ),
    ]
