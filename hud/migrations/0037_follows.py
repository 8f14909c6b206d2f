"""Webhooks are follows of the team: a person has some too, each with its conditions, channel and hour."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

_CHANNELS = [(name, name.title()) for name in ("standard", "slack", "github", "mail", "rss")]


def _key(name, to, related):
    field = models.ForeignKey(to, django.db.models.deletion.CASCADE, null=True, related_name=related)
    return migrations.AddField("follow", name, field)


def _text(name, most):
    return migrations.AddField("follow", name, models.CharField(blank=True, default="", db_default="", max_length=most))


class Migration(migrations.Migration):
    dependencies = [("hud", "0036_undecided_regressions"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]
    operations = [
        migrations.RenameModel("Webhook", "Follow"),
        migrations.RenameField("follow", "format", "channel"),
        migrations.RenameField("delivery", "webhook", "follow"),
        migrations.AlterField("follow", "name", models.CharField(blank=True, max_length=100)),
        migrations.AlterField("follow", "url", models.CharField(blank=True, max_length=500)),
        migrations.AlterField("follow", "channel", models.CharField(choices=_CHANNELS, default="standard", max_length=10)),
        _key("user", settings.AUTH_USER_MODEL, "follows"),
        _key("owner", settings.AUTH_USER_MODEL, "+"),
        _key("stream", "hud.stream", "follows"),
        _key("regression", "hud.regression", "+"),
        *(_text(name, most) for name, most in (("suite", 60), ("case", 200), ("arch", 100))),
        migrations.AddField("follow", "hour", models.SmallIntegerField(null=True)),
        migrations.AddField("delivery", "began", models.DateTimeField(null=True)),
    ]
