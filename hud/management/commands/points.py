"""`manage.py points --rebuild [--dry-run]`: make all points anew from their measurements."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from hud.points.write import rebuild


class Command(BaseCommand):
    help = "Make all points anew from their measurements, and say how many differ from those stored."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--rebuild", action="store_true", required=True)
        parser.add_argument("--dry-run", action="store_true", help="change nothing")

    def handle(self, *args: Any, dry_run: bool, **options: Any) -> None:
        points, differing, without_raw = rebuild(dry_run=dry_run)
        self.stdout.write(f"{points} points, {differing} differed, {without_raw} without raw values")
        if dry_run and differing:
            sys.exit(1)
