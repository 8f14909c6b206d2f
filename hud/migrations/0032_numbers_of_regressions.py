"""Change and factor of a regression have as many digits as those of its point."""

from django.db import migrations

import hud.models.base


class Migration(migrations.Migration):
    dependencies = [("hud", "0031_regrets_as_data")]
    operations = [
        migrations.AlterField("regression", name, hud.models.base.Real(null=True))
        for name in ("change", "factor")
    ]
