"""A run's class in place of whether a person waits for it, its pull request, and notices of its end."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hud", "0032_numbers_of_regressions")]
    operations = [
        migrations.AddField(
            "runrequest", "run_class", models.CharField(db_default="night", default="night", max_length=6)
        ),
        migrations.RunSQL(
            "UPDATE hud_runrequest SET run_class = 'person' WHERE interactive",
            "UPDATE hud_runrequest SET interactive = run_class = 'person'",
        ),
        migrations.RemoveField("runrequest", "interactive"),
        migrations.AddField("runrequest", "pull_request", models.PositiveIntegerField(null=True)),
        migrations.AlterField(
            "notice",
            "regression",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="hud.regression",
            ),
        ),
        migrations.AddField(
            "notice",
            "run",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="hud.run"
            ),
        ),
    ]
