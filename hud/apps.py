"""The application, and what `manage.py check` looks at. Each finding says what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.db import connections

MINIMUM_POSTGRES = 160_000
_PRIVATE_FILES = ("secret_key", "operator.json", "host.json")


class HudConfig(AppConfig):
    name = "hud"
    verbose_name = "Compiler HUD"

    def ready(self) -> None:
        checks.register(check_data_folder)
        checks.register(check_private_files)
        checks.register(check_database_version, checks.Tags.database)
        checks.register(check_embedded_servers, deploy=True)
        checks.register(check_public_read, deploy=True)


def check_data_folder(**_options: Any) -> list[checks.CheckMessage]:
    """Everything the application writes goes below HUD_DATA."""
    folder: Path = settings.HUD_DATA
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return []
    return [
        checks.Error(
            f"HUD_DATA={folder} cannot be written.",
            hint="Name a folder that this user may write, or change the owner of this one.",
            id="hud.E001",
        )
    ]


def check_private_files(**_options: Any) -> list[checks.CheckMessage]:
    """Secrets below HUD_DATA are for their owner alone."""
    open_files = [
        name
        for name in _PRIVATE_FILES
        if (settings.HUD_DATA / name).exists() and (settings.HUD_DATA / name).stat().st_mode & 0o077
    ]
    return [
        checks.Warning(
            f"{settings.HUD_DATA / name} can be read by other users.", hint=f"chmod 600 {name}", id="hud.W002"
        )
        for name in open_files
    ]


def check_database_version(
    *, databases: Sequence[str] | None = None, **_options: Any
) -> list[checks.CheckMessage]:
    """The statements are PostgreSQL's own, from 16 on. Asked only where a database is named."""
    found = {alias: connections[alias].cursor().connection.info.server_version for alias in databases or ()}
    return [
        checks.Error(
            f"The database {alias!r} is PostgreSQL {version // 10_000}.",
            hint="Use PostgreSQL 16 or newer.",
            id="hud.E003",
        )
        for alias, version in found.items()
        if version < MINIMUM_POSTGRES
    ]


def check_embedded_servers(**_options: Any) -> list[checks.CheckMessage]:
    """Embedded servers are for one machine: nobody backs them up, and no other host can reach them."""
    if not settings.PRODUCTION:
        return []
    missing = [name for name in ("DATABASE_URL", "REDIS_URL") if not os.environ.get(name)]
    return [
        checks.Info(
            f"{name} is not set, so the embedded server below HUD_DATA is used.",
            hint=f"Set {name} where other hosts attach or the data must be backed up.",
            id="hud.I004",
        )
        for name in missing
    ]


def check_public_read(**_options: Any) -> list[checks.CheckMessage]:
    """Whether everybody who reaches the address may read is a decision; production says it aloud."""
    if not (settings.PRODUCTION and settings.HUD_PUBLIC_READ):
        return []
    return [
        checks.Info(
            "HUD_PUBLIC_READ=1: whoever reaches this address reads every result without a login.",
            hint="Set HUD_PUBLIC_READ=0 where that is not meant.",
            id="hud.I005",
        )
    ]
