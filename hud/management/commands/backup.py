"""`manage.py backup DIR`: a verified backup of the database and of files, also while uploads run."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from hud.server import backup


class Command(BaseCommand):
    help = "Back up the database and the files below HUD_DATA that it names, and verify the backup."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("directory", type=Path, help="a new or empty folder")

    def handle(self, *args: Any, directory: Path, **options: Any) -> None:
        installation = backup.Installation(settings.HUD_DATA, connection.settings_dict)
        try:
            manifest = backup.write(directory.resolve(), installation)
        except backup.FAILURES as error:
            raise CommandError(f"no backup: {error}") from error
        for name in manifest["missing"]:
            self.stderr.write(f"{name} was lost before: the database names it, and it is not whole")
        self.stdout.write(f"Backup: {directory}, {backup.summary(manifest)}")
