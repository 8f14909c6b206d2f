"""Commits between which regressions moved."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("hud", "0037_follows")]
    operations = [
        migrations.CreateModel(
            "Commit",
            [
                ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("repo", models.CharField(max_length=140)),
                ("sha", models.CharField(max_length=64)),
                ("parent", models.CharField(blank=True, max_length=64)),
                ("title", models.CharField(max_length=300)),
                ("author", models.CharField(blank=True, max_length=150)),
                ("date", models.DateTimeField()),
                ("touched", models.JSONField(default=list)),
            ],
        ),
        migrations.AddConstraint(
            "commit", models.UniqueConstraint(fields=("sha", "repo"), name="commit_identity")
        ),
    ]
