"""`manage.py imports`: process import jobs, each in a child process, until stopped."""

import sys
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from hud.hosts import heartbeats
from hud.ingest import import_jobs
from hud.management.rounds import RoundsCommand


class Command(RoundsCommand):
    help = "Process large imports, each in a process of its own, until stopped."
    lock = 7_014_002

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--job", type=int, metavar="ID", help="process this one, in this process")

    def handle(self, *args: Any, once: bool, job: int | None = None, **options: Any) -> None:
        if job is not None:
            sys.exit(import_jobs.process_in_this_process(job))
        super().handle(once=once)

    def round(self) -> int:
        beat = partial(heartbeats.beat, "imports")
        beat()
        return import_jobs.process_next(beat=beat, stopped=self.stop.is_set)
