"""A run's class in place of whether a person waits for it, its pull request, and that it has ended."""

import django.db.models.deletion
import django.db.models.functions.datetime
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
        migrations.CreateModel(
            "RunEnd",
            [
                ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("created", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="hud.run"
                    ),
                ),
            ],
        ),
    ]
