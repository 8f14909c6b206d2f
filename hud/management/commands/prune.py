"""`manage.py prune`: remove now what is older than the settings keep it."""

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from hud import retention


class Command(BaseCommand):
    help = "Remove logs, artifacts and other things that are older than the settings HUD_KEEP_… keep them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="only say how many there are, and how large"
        )

    def handle(self, *args: Any, dry_run: bool, **options: Any) -> None:
        if dry_run:
            for kind in retention.kinds():
                count, size_bytes = kind.measure()
                self.stdout.write(f"{kind.name:18} {count:>10} {size_bytes:>15} bytes")
            return
        removed: Counter[str] = Counter()
        for name, count in retention.batches():
            removed[name] += count
        for kind in retention.kinds():
            self.stdout.write(f"{kind.name:18} {removed[kind.name]:>10} removed")
