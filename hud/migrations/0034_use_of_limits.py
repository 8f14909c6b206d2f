"""One table has what callers used of limits: what keys sent on a day, and calls of keys, were in places of
their own."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hud", "0033_classes_of_runs")]
    operations = [
        migrations.CreateModel(
            "LimitUse",
            [
                ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=20)),
                ("caller", models.CharField(max_length=150)),
                ("used", models.FloatField()),
                ("at", models.DateTimeField()),
            ],
        ),
        migrations.AddConstraint(
            "limituse", models.UniqueConstraint(fields=("name", "caller"), name="limit_use_identity")
        ),
        migrations.DeleteModel("DailyUse"),
        migrations.RemoveField("apikey", "calls_left"),
        migrations.RemoveField("apikey", "calls_at"),
    ]
