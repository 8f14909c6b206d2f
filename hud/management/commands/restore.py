"""`manage.py restore DIR`: bring a backup into an empty installation, and verify what was restored."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from hud.server import backup, embedded, up


class Command(BaseCommand):
    help = "Restore a backup into an empty installation that does not run. The embedded database is started."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("directory", type=Path, help="folder that `manage.py backup` wrote")

    def handle(self, *args: Any, directory: Path, **options: Any) -> None:
        installation = backup.Installation(settings.HUD_DATA, connection.settings_dict)
        try:
            with ExitStack() as stack:
                if not os.environ.get("DATABASE_URL"):
                    embedded.make_folder(installation.data)
                    stack.enter_context(up.only_one(up.Options.read(os.environ)))
                    server = embedded.postgres(installation.data)
                    stack.enter_context(embedded.running([server], installation.data / "logs"))
                manifest = backup.restore(directory.resolve(), installation)
        except (*backup.FAILURES, up.UpError) as error:
            raise CommandError(f"not restored: {error}") from error
        self.stdout.write(f"Restored {backup.summary(manifest)}")
