"""Webhooks are follows of the team: a person has some too, each with its conditions, channel and hour."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

_CASCADE = django.db.models.deletion.CASCADE


class Migration(migrations.Migration):
    dependencies = [("hud", "0036_undecided_regressions"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]
    operations = [
        migrations.RenameModel("Webhook", "Follow"),
        migrations.RenameField("follow", "format", "channel"),
        migrations.RenameField("delivery", "webhook", "follow"),
        migrations.AlterField("follow", "name", models.CharField(blank=True, max_length=100)),
        migrations.AlterField("follow", "url", models.CharField(blank=True, max_length=500)),
        migrations.AlterField(
            "follow",
            "channel",
            models.CharField(
                choices=[
                    ("standard", "Standard"),
                    ("slack", "Slack"),
                    ("github", "Github"),
                    ("mail", "Mail"),
                    ("rss", "Rss"),
                ],
                default="standard",
                max_length=10,
            ),
        ),
        migrations.AddField(
            "follow",
            "user",
            models.ForeignKey(
                settings.AUTH_USER_MODEL, _CASCADE, null=True, related_name="follows"
            ),
        ),
        migrations.AddField(
            "follow",
            "owner",
            models.ForeignKey(settings.AUTH_USER_MODEL, _CASCADE, null=True, related_name="+"),
        ),
        migrations.AddField(
            "follow",
            "stream",
            models.ForeignKey("hud.stream", _CASCADE, null=True, related_name="follows"),
        ),
        migrations.AddField(
            "follow",
            "regression",
            models.ForeignKey("hud.regression", _CASCADE, null=True, related_name="+"),
        ),
        migrations.AddField("follow", "suite", models.CharField(blank=True, db_default="", default="", max_length=60)),
        migrations.AddField("follow", "case", models.CharField(blank=True, db_default="", default="", max_length=200)),
        migrations.AddField("follow", "arch", models.CharField(blank=True, db_default="", default="", max_length=100)),
        migrations.AddField("follow", "hour", models.SmallIntegerField(null=True)),
        migrations.AddField("delivery", "began", models.DateTimeField(null=True)),
    ]
