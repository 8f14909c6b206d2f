"""The Django application and its checks for `manage.py check`."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

from django.apps import AppConfig
from django.conf import settings
from django.contrib.staticfiles.apps import StaticFilesConfig
from django.core import checks
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.signals import post_migrate

from hud.server.backup import MIGRATIONS

MINIMUM_POSTGRES = 160_000
_Messages: TypeAlias = list[checks.CheckMessage]


class StaticFiles(StaticFilesConfig):
    """Collect plotly.js alone of the plotly wheel."""

    ignore_patterns = (*StaticFilesConfig.ignore_patterns, "datasets", "templates", "widgetbundle.js")


class HudConfig(AppConfig):
    default = True  # of the configurations here
    name = "hud"
    verbose_name = "Compiler HUD"

    def ready(self) -> None:
        from hud.accounts import audit  # noqa: F401, PLC0415  # it listens to logins, and needs the models

        checks.register(check_databases, checks.Tags.database)
        checks.register(check_deployment, deploy=True)
        post_migrate.connect(make_streams, sender=self)


def make_streams(**_options: Any) -> None:
    """Make the streams that every installation has, where a migration or `flush` left none of them."""
    from hud.models import OPERATORS_OWN, Stream  # noqa: PLC0415  # needs the models

    if Stream._meta.db_table in connection.introspection.table_names():
        Stream.objects.bulk_create([Stream(name=name) for name in OPERATORS_OWN], ignore_conflicts=True)


def check_databases(*, databases: Sequence[str] | None = None, **_options: Any) -> _Messages:
    """Return errors for PostgreSQL before 16, and for a database that a newer release has migrated; only with
    `--database`."""
    messages: _Messages = []
    for alias in databases or ():
        version = connections[alias].cursor().connection.info.server_version
        if version < MINIMUM_POSTGRES:
            text = f"The database {alias!r} is PostgreSQL {version // 10_000}."
            messages.append(checks.Error(text, hint="Use PostgreSQL 16 or newer.", id="hud.E003"))
        applied = MigrationRecorder(connections[alias]).applied_migrations()
        if unknown := sorted(name for app, name in applied if app == "hud" and name not in MIGRATIONS):
            text = f"The database {alias!r} was migrated by a newer release, up to {unknown[-1]}."
            hint = "Install that release, or restore a backup of before with manage.py restore."
            messages.append(checks.Error(text, hint=hint, id="hud.E006"))
    return messages


def check_deployment(**_options: Any) -> _Messages:
    """Mention decisions of a production site: embedded servers, host names, public reading."""
    if not settings.PRODUCTION:
        return []
    found: _Messages = []
    for name in ("DATABASE_URL", "REDIS_URL"):
        if not os.environ.get(name):
            text = f"{name} is not set, so the embedded server below HUD_DATA is used."
            hint = f"Set {name} where other hosts attach or the data must be replicated."
            found.append(checks.Info(text, hint=hint, id="hud.I004"))
    if "*" in settings.ALLOWED_HOSTS:
        text = "ALLOWED_HOSTS=* accepts any host name, which lets other sites read and forge links."
        found.append(checks.Warning(text, hint="Name the hosts of this site.", id="hud.W006"))
    if settings.HUD_PUBLIC_READ:
        text = "HUD_PUBLIC_READ=1: whoever reaches this address reads every result without a login."
        found.append(checks.Info(text, hint="Set HUD_PUBLIC_READ=0 where that is not meant.", id="hud.I005"))
    return found
