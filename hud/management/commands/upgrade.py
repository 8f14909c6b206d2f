"""`manage.py upgrade [--dry-run]`: migrate the database, and print what was counted before and after."""

from collections import Counter
from typing import Any

from django.apps import apps
from django.core.checks import Tags
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, transaction

from hud.points import write as points
from hud.sql import fetch_tuples


class Command(BaseCommand):
    help = "Migrate the database and make missing points; print rows before and after, if they are others."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="do it in a transaction that is undone")

    def handle(self, *args: Any, dry_run: bool, **options: Any) -> None:
        self.check(app_configs=[apps.get_app_config("hud")], tags=[Tags.database], databases=["default"])
        before = _counts()
        if dry_run:
            with transaction.atomic():
                self._move(before)
                transaction.set_rollback(True)
            self.stdout.write("This was a dry run: nothing has changed.")
        else:
            self._move(before)

    def _move(self, before: Counter[str]) -> None:
        call_command("migrate", verbosity=0)
        if points.are_missing():
            points.rebuild()
        after = _counts()
        if not before["hud_run"] or after == before:
            return
        self.stdout.write(f"{'':<38}{'before':>12}{'after':>12}")
        for table in sorted({*before, *after}):
            self.stdout.write(f"{table:<38}{before[table]:>12,}{after[table]:>12,}")


def _counts() -> Counter[str]:
    """Return the rows of each table of ours that is there."""
    there = connection.introspection.table_names(include_views=True)
    tables = (name for name in there if name.startswith("hud_"))
    return Counter({name: fetch_tuples(f"SELECT count(*) FROM {name}", [])[0][0] for name in tables})  # noqa: S608 — of ours  # nosec B608
