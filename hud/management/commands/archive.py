"""`manage.py archive [--verify]`: write closed months into the archive, or compare it with PostgreSQL."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hud.archive import write
from hud.models import Stream
from hud.sql import fetch_tuples

_LOCK = 7_014_010


class Command(BaseCommand):
    help = (
        "Write the points and samples of closed months as Parquet, where they are not archived as they are."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--verify", action="store_true", help="write nothing, compare by digest")

    def handle(self, *args: Any, verify: bool, **options: Any) -> None:
        streams = dict(Stream.objects.values_list("pk", "name"))
        if verify:
            differing = 0
            for month, difference in write.verify():
                differing += bool(difference)
                name = f"{streams[month.stream_id]} {month.month:%Y-%m}"
                self.stdout.write(f"{name}: {difference or 'equal'}")
            sys.exit(1 if differing else 0)
        if fetch_tuples("SELECT pg_try_advisory_lock(%s)", [_LOCK]) != [(True,)]:
            raise CommandError("another process is writing the archive")
        try:
            for row in write.write_due():
                self.stdout.write(
                    f"{streams[row.stream_id]} {row.month:%Y-%m}: {row.points} points,"
                    f" {row.sampled} measurements with samples, {row.size_bytes} bytes"
                )
        finally:
            fetch_tuples("SELECT pg_advisory_unlock(%s)", [_LOCK])
