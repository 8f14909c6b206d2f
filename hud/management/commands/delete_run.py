"""`manage.py delete_run ID [--dry-run]`: delete a run, or say what would go with it."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hud.corrections.background import delete, finish
from hud.models import Run, Upload
from hud.problems import Problem, row_of


class Command(BaseCommand):
    help = "Delete a run with everything that only it has. Remaining series are judged again."
    kind: type[Run] | type[Upload] = Run

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=int)
        parser.add_argument("--dry-run", action="store_true", help="only say what would go")

    def handle(self, *args: Any, id: int, dry_run: bool, **options: Any) -> None:  # noqa: A002
        try:
            row = row_of(self.kind, id)
            done = finish(delete(row, who="command line", dry_run=dry_run))
        except Problem as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{'would delete' if dry_run else 'deleted'} {row}: {done}")
