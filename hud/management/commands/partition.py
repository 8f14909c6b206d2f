"""`manage.py partition [--dry-run]`: switch partitions of the large tables on, or make those needed next."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from hud import partitions
from hud.sql import fetch_tuples


class Command(BaseCommand):
    help = (
        "Partition points by quarter and measurements by run id, with their rows in place. The way back is a"
        " backup. Where it is done, make the partitions that are needed next."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only say what would happen")

    def handle(self, *args: Any, dry_run: bool, **options: Any) -> None:
        for table in partitions.TABLES:
            if bound := table.bound():
                self.stdout.write(f"{table.name}: partitions up to {bound}")
                continue
            sizes = "SELECT pg_size_pretty(pg_total_relation_size(oid)), greatest(reltuples, 0) FROM pg_class"
            ((size, rows),) = fetch_tuples(f"{sizes} WHERE oid = %s::regclass", [table.name])
            becomes = f"{table.name}_first up to {table.next_bound()}"
            self.stdout.write(f"{table.name}: about {rows:,.0f} rows, {size}, becomes {becomes}")
            try:
                if not dry_run:
                    partitions.partition(table)
            except OperationalError as error:
                reason = "is in use, as by a backup or a large upload, and stays as it is; try again"
                raise CommandError(f"{table.name} {reason} ({error})") from error
        if dry_run:
            self.stdout.write("This was a dry run: nothing has changed.")
        else:
            partitions.look_after()
