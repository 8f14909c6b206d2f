"""Whose turn it is: when a task of an owner's runs was last claimed, and of a night's by each accelerator."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hud", "0038_commits")]
    operations = [
        migrations.AddField("accelerator", "since_night", models.IntegerField(db_default=0, default=0)),
        migrations.CreateModel(
            "Turn",
            [
                ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("run_class", models.CharField(max_length=6)),
                ("owner", models.CharField(max_length=150)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            {"constraints": [models.UniqueConstraint(fields=("run_class", "owner"), name="turn_identity")]},
        ),
    ]
