"""Owners of keys, addresses in the audit, accounts of single sign-on; and a role for every login.

Superusers and staff become admins, since they could do everything so far; all others become viewers.
"""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import Q


def give_roles(apps, _schema_editor):
    Group, User = apps.get_model("auth", "Group"), apps.get_model("auth", "User")
    groups = {
        name: Group.objects.get_or_create(name=name)[0] for name in ("viewer", "uploader", "operator", "admin")
    }
    for user in User.objects.filter(Q(is_superuser=True) | Q(is_staff=True)):
        user.is_superuser = user.is_staff = True
        user.save(update_fields=["is_superuser", "is_staff"])
        user.groups.add(groups["admin"])
    for user in User.objects.exclude(groups__in=groups.values()):
        user.groups.add(groups["viewer"])


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("hud", "0006_refused_results"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]
    operations: ClassVar = [
        migrations.AddField(
            "apikey",
            "owner",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="keys",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField("audit", "address", models.CharField(blank=True, default="", max_length=100)),
        migrations.CreateModel(
            "SignOn",
            [
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("issuer", models.CharField(max_length=300)),
                ("subject", models.CharField(max_length=255)),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sign_on",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=["issuer", "subject"], name="sign_on_subject")]
            },
        ),
        migrations.RunPython(give_roles, migrations.RunPython.noop),
    ]
