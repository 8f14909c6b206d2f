"""`manage.py rename suite|case|arch|host OLD NEW [--suite S] [--dry-run]`: correct a misspelt name."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hud.corrections.background import finish, rename
from hud.corrections.renaming import KINDS
from hud.problems import Problem


class Command(BaseCommand):
    help = "Rename a suite, case, arch or host. Where the new name exists, both histories become one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", choices=KINDS)
        parser.add_argument("old")
        parser.add_argument("new")
        parser.add_argument("--suite", default="", help="rename a case or an arch only in this suite")
        parser.add_argument("--dry-run", action="store_true", help="only say what would change")

    def handle(
        self, *args: Any, kind: str, old: str, new: str, suite: str, dry_run: bool, **options: Any
    ) -> None:
        try:
            asked = rename(kind=kind, old=old, new=new, suite=suite, who="command line", dry_run=dry_run)
            done = finish(asked)
        except Problem as error:
            raise CommandError(str(error)) from error
        verb = "would rename" if dry_run else "renamed"
        self.stdout.write(f"{verb} {kind} {old} to {new}, with {old} kept as its alias: {done}")
